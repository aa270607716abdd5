"""Importing without a search for garbage, which goes on afterwards, and without what nobody asks for."""

import gc
import subprocess
import sys

import pytest

from levelfield.core import imports
from levelfield.core.imports import quick_imports


def test_garbage_is_collected_again_after_an_import_that_fails() -> None:
    with quick_imports():
        with quick_imports():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ImportError), quick_imports():
        import no_such_module  # noqa: F401
    assert gc.isenabled()


@pytest.mark.parametrize("needs", ["", "from in_pieces import told", "from in_pieces import whole"])
def test_a_class_of_a_package_comes_without_the_rest_of_it_until_that_is_asked_for(needs: str, tmp_path, monkeypatch):
    package = tmp_path / "in_pieces"
    package.mkdir()
    (package / "__init__.py").write_text("told, whole = 'told', 'whole'\nfrom in_pieces.part import Part")
    (package / "part.py").write_text(f"{needs}\nclass Part: ...")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(imports, "KNOWN", {"in_pieces": lambda: {"told": "told"}})
    monkeypatch.setattr(imports, "PIECES", {"in_pieces": {"in_pieces.part": ("Part",)}})
    with quick_imports():
        import in_pieces
        from in_pieces import Part
    assert ("whole" in vars(in_pieces)) == needs.endswith("whole"), "only a part that needs the whole has it imported"
    assert in_pieces.whole == "whole"
    assert Part is in_pieces.Part is sys.modules["in_pieces.part"].Part
    assert in_pieces.__file__ == str(package / "__init__.py")
    with pytest.raises(AttributeError, match="module 'in_pieces' has no attribute 'no'"):
        _ = in_pieces.no
    with pytest.raises(ImportError):
        from in_pieces import no  # noqa: F401


def test_a_hidden_package_is_missing_until_the_end_unless_it_is_there_already(tmp_path, monkeypatch) -> None:
    (tmp_path / "hidden_one.py").write_text("name = 1")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(imports, "HIDDEN", ("hidden_one",))
    with quick_imports():
        with quick_imports(), pytest.raises(ModuleNotFoundError):
            import hidden_one
        with pytest.raises(ModuleNotFoundError):
            import hidden_one
    import hidden_one

    with quick_imports():
        assert sys.modules["hidden_one"] is hidden_one


def test_a_package_that_is_broken_says_so_whenever_it_is_asked_and_a_missing_one_at_once(tmp_path, monkeypatch) -> None:
    (tmp_path / "broken_one.py").write_text("import no_such_module")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(imports, "KNOWN", {"broken_one": dict, "missing_one": dict})
    with quick_imports():
        import broken_one
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="no_such_module"):
            broken_one.name()
    with quick_imports(), pytest.raises(ModuleNotFoundError, match="missing_one"):
        import missing_one  # noqa: F401


CODE = """
import atexit, gc, sys
atexit.register(lambda: print(gc.get_freeze_count()))  # triton complains of leaks behind an error's one line otherwise
from levelfield.core.imports import quick_imports
with quick_imports():
    import lightning.pytorch, timm, levelfield.metrics
assert gc.get_freeze_count() > 0
print(*sorted({"scipy.signal", "transformers", "torchmetrics.image", "wandb.sdk"} & set(sys.modules)))
import torchmetrics
metric = torchmetrics.Metric
assert torchmetrics.MeanMetric is torchmetrics.aggregation.MeanMetric and issubclass(torchmetrics.MeanMetric, metric)
assert metric is torchmetrics.metric.Metric and set(torchmetrics.__all__) <= set(dir(torchmetrics))
"""


@pytest.mark.processes
def test_lightning_and_timm_bring_along_neither_signals_nor_texts_nor_a_tracker_and_nothing_stays_frozen() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("\n0\n", 0), done.stderr
