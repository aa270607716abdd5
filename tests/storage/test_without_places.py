"""No path of this machine stands in what is handed on."""

import shutil
from pathlib import Path

import pytest
import torch
from own_images import image_options, own_images

from levelfield.losses import ArcFaceLoss
from levelfield.models import TimmTrunk
from levelfield.storage.without_places import is_place, moved, without_places
from levelfield.training.learner import MetricLearner


def test_an_absolute_path_is_told_by_its_name() -> None:
    told = without_places({"weights": "/home/me/resnet.pth", "list": [Path("/home/you/x"), 3], "relative": "a/b"})
    assert told == {"weights": "resnet.pth", "list": ["x", 3], "relative": "a/b"}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("/home/me/x.pth", "x.pth"),
        ("../x.pth", "x.pth"),
        ("a/../../x", "x"),
        ("~/x", "x"),
        ("https://host/a/x.pth", "x.pth"),
        ("reference::a/x.json", "x.json"),
        ("simplecache::s3://bucket/x", "x"),
        ("C:\\a\\x", "x"),
        ("..\\x", "x"),
        ("\\\\server\\x", "x"),
        ("/", ""),
    ],
)
def test_a_place_is_told_by_its_name(text: str, name: str) -> None:
    assert is_place(text)
    assert without_places({"at": [text]}) == {"at": [name]}


@pytest.mark.parametrize(
    "text",
    [
        "a/b.csv",
        "query: ",
        "q: ",
        "Instruct: find\nQuery: ",
        "package:a.b",
        "hf-hub:a/b",
        "a..b",
        r"blocks\.\d\..",
        "::",
        "",
    ],
)
def test_other_texts_stay(text: str) -> None:
    assert not is_place(text)
    assert without_places(text) == text


def test_paths_within_a_folder_move_with_it() -> None:
    state = {"/old/best.ckpt": ("/old", "/older", 1.0)}
    assert moved(state, "/old", "/new") == {"/new/best.ckpt": ("/new", "/older", 1.0)}


@pytest.fixture(scope="module")
def mine(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("mine")
    own_images(folder)
    return folder


def test_a_checkpoint_names_no_folder_and_is_validated_where_it_lies_and_elsewhere(mine, tiny, run, tmp_path):
    words = [*image_options(tiny, mine / "table.csv"), "--model.loss", "ContrastiveLoss", "--trainer.max_epochs", "1"]
    assert run("fit", *words, "--output", tmp_path)[0] == 0
    best = tmp_path / "fit" / "ImageTable-ContrastiveLoss" / "0" / "best.ckpt"
    for place in (mine, tmp_path):
        assert str(place).encode() not in best.read_bytes()
    assert run("validate", "--ckpt_path", best)[0] == 0
    (tmp_path / "elsewhere").mkdir()
    shutil.copy(best, tmp_path / "elsewhere")
    code, _, complaint = run("validate", "--ckpt_path", tmp_path / "elsewhere" / "best.ckpt")
    assert (code, complaint.count("\n")) == (2, 1), complaint
    assert "table.csv" in complaint
    code, _, complaint = run(
        *("validate", "--ckpt_path", tmp_path / "elsewhere" / "best.ckpt", "--data.dataset.table", mine / "table.csv")
    )
    assert code == 0, complaint
    code, _, complaint = run("fit", *words, "--output", tmp_path, "--ckpt_path", best, "--trainer.max_epochs", "2")
    assert code == 0, complaint


def test_a_checkpoint_goes_on_knowing_its_best_score(mine, tiny, run, tmp_path):
    words = ["fit", *tiny, "--model.loss", "ContrastiveLoss", "--output", tmp_path]
    assert run(*words)[0] == 0
    best = tmp_path / "fit" / "Glyphs-ContrastiveLoss" / "0" / "best.ckpt"
    (state,) = torch.load(best, weights_only=True)["callbacks"].values()
    assert state["dirpath"] == "{folder}"
    assert state["best_model_path"] == "{folder}/best.ckpt"


def test_a_studys_files_name_no_folder(finished: Path) -> None:
    files = [path for path in finished.rglob("*") if path.is_file() and "locks" not in path.parts]
    assert any(path.name == "best.ckpt" for path in files)
    assert [path for path in files if str(finished).encode() in path.read_bytes()] == []


def test_the_file_of_the_trunks_weights_is_told_by_its_name(tiny, run, tmp_path):
    torch.save(TimmTrunk("test_resnet", weights=None).model.state_dict(), tmp_path / "mine.pth")
    words = [*tiny, "--model.trunk.weights", tmp_path / "mine.pth", "--model.loss", "ContrastiveLoss"]
    code, _, complaint = run("fit", *words, "--trainer.max_epochs", "1", "--output", tmp_path)
    assert code == 0, complaint
    best = tmp_path / "fit" / "Glyphs-ContrastiveLoss" / "0" / "best.ckpt"
    checkpoint = torch.load(best, weights_only=True)
    assert checkpoint["hyper_parameters"]["trunk"]["init_args"]["weights"] == "mine.pth"
    assert str(tmp_path).encode() not in best.read_bytes()
    learner = MetricLearner(TimmTrunk("test_resnet", weights=str(tmp_path / "mine.pth")), loss=ArcFaceLoss)
    assert learner.hparams["trunk"]["init_args"]["weights"] == "mine.pth"
