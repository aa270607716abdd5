"""Which folder a fit writes into: never another fit's, and its own again after a stop."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from levelfield.core.errors import UserError
from levelfield.training.run_folder import RunFolder, claim

CONFIG = {
    **{"name": None, "output": "outputs", "checkpoint_seconds": 60.0, "seed_everything": 0},
    "trainer": {"max_epochs": 2, "logger": None},
    "model": {"trunk_lr": 1e-4},
    "data": {"root": None, "num_workers": 0, "dataset": {"class_path": "Glyphs", "init_args": {}}},
}


@pytest.fixture(autouse=True)
def _released(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets go of what a test holds at its end."""
    held, hold = [], RunFolder.hold
    monkeypatch.setattr(RunFolder, "hold", lambda one: held.append(one) or hold(one))
    yield
    for one in held:
        one.release()


def begun(parent: Path, config: dict, *files: str) -> RunFolder:
    """A claim whose fit has written its configuration and some files."""
    found = claim(parent, config, False)
    for name, content in (("config.yaml", yaml.safe_dump(config)), *((name, "") for name in files)):
        (found.path / name).write_text(content)
    return found


def test_fits_that_begin_at_once_have_a_folder_each(tmp_path: Path) -> None:
    together = threading.Barrier(8)

    def take(_: int) -> int:
        together.wait()
        return int(claim(tmp_path / "fit" / "mine", CONFIG, False).path.name)

    with ThreadPoolExecutor(8) as threads:
        assert sorted(threads.map(take, range(8))) == list(range(8))


def test_only_a_stopped_fit_of_the_same_settings_is_resumed(tmp_path: Path) -> None:
    begun(tmp_path, CONFIG, "best.ckpt").finish()
    begun(tmp_path, CONFIG, "last.ckpt", "best.ckpt").release()
    begun(tmp_path, {**CONFIG, "model": {"trunk_lr": 1e-3}}, "last.ckpt").release()
    elsewhere = {**CONFIG, "output": "elsewhere", "data": {**CONFIG["data"], "root": "data", "num_workers": 4}}
    elsewhere["trainer"] = {**CONFIG["trainer"], "devices": 2, "num_nodes": 2, "strategy": "ddp"}
    found = claim(tmp_path, elsewhere, True)
    assert (found.path.name, found.state) == ("1", "unfinished")
    assert claim(tmp_path, {**CONFIG, "seed_everything": 1}, True).path.name == "3"
    found.finish()
    assert sorted(path.name for path in found.path.iterdir()) == ["best.ckpt", "config.yaml"]
    found = claim(tmp_path, CONFIG, True)
    assert (found.path.name, found.state) == ("1", "finished")
    assert claim(tmp_path, CONFIG, False).state == "new"
    begun(tmp_path / "stateless", CONFIG, "best.ckpt").release()
    found = claim(tmp_path / "stateless", CONFIG, True)
    assert (found.path.name, found.state) == ("1", "new")
    assert (tmp_path / "stateless/0/best.ckpt").exists()


def test_a_running_fit_is_not_resumed(tmp_path: Path) -> None:
    running = begun(tmp_path, CONFIG, "last.ckpt")
    with pytest.raises(UserError, match=str(running.path)):
        claim(tmp_path, CONFIG, True)
    claim(tmp_path / "mistake", CONFIG, False).release()
    assert list((tmp_path / "mistake").iterdir()) == []


def test_a_file_in_the_place_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "fit").write_text("")
    for parent in (tmp_path / "fit" / "mine", tmp_path / "fit"):
        with pytest.raises(UserError, match=str(tmp_path / "fit")):
            claim(parent, CONFIG, False)
