"""No path of this machine stands in what is handed on."""

import os
import shutil
from pathlib import Path

import pytest
from own_images import image_options, own_images
from refused import refused, succeeded

from levelfield.core.errors import UserError
from levelfield.core.paths import cache_root, is_place, moved, strip_paths

PLACES = "/home/me/x|../x|a/../../x|~/x|https://host/a/x|reference::a/x|simplecache::s3://bucket/x"


@pytest.mark.parametrize("text", [*PLACES.split("|"), "C:\\a\\x", "..\\x", "\\\\server\\x", "/"])
def test_a_place_is_told_by_its_name(text: str) -> None:
    assert is_place(text)
    assert strip_paths({"at": [text, Path("/home/you/y.pth"), 3]}) == {"at": [text.strip("/") and "x", "y.pth", 3]}


TEXTS = "a/b.csv|query: |Instruct: find\nQuery: |package:a.b|hf-hub:a/b|a..b|blocks\\.\\d\\..|::|"


@pytest.mark.parametrize("text", TEXTS.split("|"))
def test_other_texts_stay(text: str) -> None:
    assert not is_place(text)
    assert strip_paths(text) == text


def test_paths_within_a_folder_move_with_it() -> None:
    state = {"/old/best.ckpt": ("/old", "/older", 1.0)}
    assert moved(state, "/old", "/new") == {"/new/best.ckpt": ("/new", "/older", 1.0)}


@pytest.mark.slow
def test_a_checkpoint_names_no_folder_and_is_validated_where_it_lies_and_elsewhere(tiny, run, tmp_path):
    (mine := tmp_path / "mine").mkdir()
    words = [*image_options(tiny, own_images(mine)), "--model.loss", "ContrastiveLoss", "--trainer.max_epochs", "1"]
    succeeded(run("fit", *words, "--output", tmp_path))
    best = tmp_path / "fit" / "ImageTable-ContrastiveLoss" / "0" / "best.ckpt"
    assert str(tmp_path).encode() not in best.read_bytes()
    quiet = ("--trainer.enable_progress_bar", "false")
    scores = succeeded(run("validate", "--ckpt_path", best, *quiet))
    elsewhere = shutil.copy(best, tmp_path)  # where no config.yaml is beside it
    refused(run("validate", "--ckpt_path", elsewhere), "no table table.csv")
    words_again = ("--data.dataset.table", mine / "table.csv", *quiet)
    assert succeeded(run("validate", "--ckpt_path", elsewhere, *words_again)) == scores
    succeeded(run("fit", *words, "--output", tmp_path, "--ckpt_path", best, "--trainer.max_epochs", "2"))


def test_a_studys_files_name_no_folder(finished: Path) -> None:
    files = [path for path in finished.rglob("*") if path.is_file() and "locks" not in path.parts]
    assert any(path.name == "best.ckpt" for path in files)
    assert [path for path in files if str(finished).encode() in path.read_bytes()] == []


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEVELFIELD_CACHE", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 5)  # no entry in /etc/passwd
    with pytest.raises(UserError, match="LEVELFIELD_CACHE"):
        cache_root()
    monkeypatch.setenv("LEVELFIELD_CACHE", "/somewhere")
    assert cache_root() == Path("/somewhere")
