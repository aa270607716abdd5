"""Importing without a search for garbage, which goes on afterwards, and without what nobody asks for."""

import gc
import subprocess
import sys

import pytest

from levelfield.core import processes
from levelfield.core.processes import quick_imports


def test_garbage_is_collected_again_after_an_import_that_fails() -> None:
    with quick_imports():
        with quick_imports():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ImportError), quick_imports():
        import no_such_module  # noqa: F401
    assert gc.isenabled()


def test_a_hidden_package_is_missing_until_the_end_unless_it_is_there_already(tmp_path, monkeypatch) -> None:
    (tmp_path / "hidden_one.py").write_text("name = 1")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(processes, "HIDDEN", ("hidden_one",))
    with quick_imports():
        with quick_imports(), pytest.raises(ModuleNotFoundError):
            import hidden_one
        with pytest.raises(ModuleNotFoundError):
            import hidden_one
    import hidden_one

    with quick_imports():
        assert sys.modules["hidden_one"] is hidden_one


CODE = """
import atexit, gc, sys
atexit.register(lambda: print(gc.get_freeze_count()))  # triton complains of leaks behind an error's one line otherwise
from levelfield.core.processes import quick_imports
with quick_imports():
    import lightning.pytorch, timm, levelfield.metrics
assert gc.get_freeze_count() > 0
assert "wandb.sdk" not in sys.modules
"""


@pytest.mark.processes
def test_lightning_and_timm_import_no_tracker_and_nothing_stays_frozen() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("0\n", 0), done.stderr
