"""`levelfield study`: what it prints, what it finds, and one line for each mistake."""

import json
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from printed import numbers
from typed import parse

from levelfield.cli.main import main as levelfield
from levelfield.cli.main import run as typed
from levelfield.core.errors import UserError
from levelfield.study.rows import load_spec

OWN_LOSS = """
from torch import nn

class MyLoss(nn.Module):
    def forward(self, embeddings, labels):
        return -embeddings[labels == labels[0]].mean(0).norm()
"""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toy_file: Path) -> Path:
    """A working directory with configs/study/toy.yaml."""
    (tmp_path / "configs" / "study").mkdir(parents=True)
    shutil.copy(toy_file, tmp_path / "configs" / "study" / "toy.yaml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    return tmp_path


def test_report_prints_the_table_and_derives_the_files_anew(desk, finished, capsys, monkeypatch):
    monkeypatch.setenv("LEVELFIELD_CACHE", str(desk / "cache"))  # of a user who has evaluated nothing else
    folder = Path(shutil.copytree(finished, desk / "outputs" / "toy"))
    for name in ("results.csv", "summary.csv"):
        (folder / name).unlink()
    assert typed("study", ["report", "toy"]) == 0
    for name in ("results.csv", "summary.csv"):
        assert (folder / name).read_bytes() == (finished / name).read_bytes()
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("features, PCA to 16", "Contrastive", "ArcFace", "too few runs", "once"))
    assert [line.split()[-1] for line in printed.splitlines()[-2:]] == ["outputs/toy/report/index.html", "outputs/toy"]
    page = (folder / "report" / "index.html").read_text()
    (differs,) = (line for line in page.splitlines() if "<li>" in line and "data.samples_per_class" in line)
    assert "ArcFace: " in differs
    assert numbers(differs)[-2:] == [1, 4]


def test_status_counts_jobs_and_tells_the_time_left(desk, finished, capsys):
    folder = Path(shutil.copytree(finished, desk / "somewhere"))
    for run in range(2):
        (folder / f"jobs/arcface/run{run}/fold1/result.json").unlink()
    for path in (folder / "jobs" / "arcface").glob("*/fold*/result.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "seconds": 60.0}))
    assert typed("study", ["status", "toy.yaml", "--output", "somewhere"]) == 0
    counts = {line.split()[0]: numbers(line) for line in capsys.readouterr().out.splitlines() if line}
    assert [counts[key] for key in ("done", "running", "to", "left")] == [[21, 23], [], [2], [2]]


@pytest.mark.slow
def test_resume_takes_the_settings_from_the_folder(desk, finished, capsys):
    folder = Path(shutil.copytree(finished, desk / "outputs" / "toy"))
    file = desk / "configs" / "study" / "toy.yaml"
    file.write_text(file.read_text().replace("runs: 2", "runs: 3"))
    with pytest.raises(UserError, match=r"runs .*2 .*3"):
        typed("study", ["run", "toy"])
    capsys.readouterr()
    assert typed("study", ["resume", "toy"]) == 0
    said = capsys.readouterr().out.splitlines()[0]
    assert "2 runs" in said, "as in outputs/toy/study.yaml, not in configs/study/toy.yaml"
    file.unlink()
    for command in ("resume", "status", "report", "verify"):
        assert typed("study", [command, "outputs/toy"]) == 0
    assert typed("study", ["resume", "outputs/toy", "--data.root", "elsewhere"]) == 0, (
        "where the data lie changes no number"
    )
    assert "root: elsewhere" in (folder / "study.yaml").read_text()
    for name in ("results.csv", "summary.csv"):
        assert (folder / name).read_bytes() == (finished / name).read_bytes()
    for words, key in {
        "resume outputs/toy --runs 3": "runs",
        "resume outputs/toy --search.trials 4": r"search\.trials .*--recompute",
        "resume outputs/toy --trainer.max_epochs 4": r"max_epochs .*--recompute",
        "resume outputs/toy --add-method TripletMarginLoss": "--add-method",
        "resume outputs/toy --output other": "--output other",
        "resume outputs/toy --rusn.x 1": r"--rusn\.x",
        "run outputs/toy": "outputs/toy .*levelfield study resume",
    }.items():
        with pytest.raises(UserError, match=key) as caught:
            typed("study", words.split())
        assert len(str(caught.value).splitlines()) == 1


@pytest.mark.slow
def test_the_command_printed_next_adds_a_loss_to_a_study_that_was_given_options(desk, capsys):
    (desk / "more.yaml").write_text("model: {embedding_size: 12}\n")
    (desk / "my_loss.py").write_text(OWN_LOSS)
    options = ["--config", "more.yaml", "--search.trials", "1", "--runs=1", "--trainer.max_epochs=1"]
    assert typed("study", ["run", "toy.yaml", *options, "--output", "here"]) == 0
    printed = capsys.readouterr().out
    again = next(line for line in printed.splitlines() if line.startswith("next: "))
    words = shlex.split(again[again.index("levelfield ") :])
    assert levelfield([*words[1:-1], "my_loss.MyLoss"]) == 0
    assert (desk / "here/jobs/my_loss/run0/test/result.json").exists()
    assert "my_loss" in (desk / "here/results.csv").read_text()
    printed = capsys.readouterr().out
    assert "--add-method" not in printed
    rows = [line.split()[0] for line in printed.splitlines() if line.startswith("  ") and line.strip()]
    assert (rows[-4], {*rows[-3:]}) == ("features,", {"Contrastive", "ArcFace", "my_loss"})
    assert "mean of 1 run\n" in printed, "the override of the number of runs"
    assert "my_loss (" in printed, "nothing says what to search"


def test_dotted_options_are_overrides_wherever_they_stand() -> None:
    words = ["run", "--data.root", "DIR", "toy.yaml", "--trainer.max_epochs=2", "--runs", "3", "--output", "x"]
    words += ["--data.dataset.table", "t.csv", "--data.dataset=Omniglot", "--executor.workers", "2"]
    arguments = parse(words)
    assert (arguments.file, arguments.output, arguments.options) == ("toy.yaml", Path("x"), {"workers": 2})
    given = {"data.root": "DIR", "trainer.max_epochs": 2, "runs": 3, "data.dataset.table": "t.csv"}
    assert [*arguments.overrides.items()] == [*given.items(), ("data.dataset", "Omniglot")]


@pytest.mark.parametrize("title", ["../elsewhere", ""])
def test_a_title_leads_out_of_no_folder(desk: Path, title: str) -> None:
    file = desk / "configs" / "study" / "toy.yaml"
    file.write_text(file.read_text().replace("name: toy", f"name: {title!r}"))
    with pytest.raises(UserError, match=r"^name: .*--output"):
        typed("study", ["run", "toy"])
    assert not (desk / "outputs").exists()


def test_a_key_that_appends_may_be_given_several_times(toy_file: Path) -> None:
    words = ["run", str(toy_file)]
    for callback in ("ValidateFirst", "LearningRateMonitor"):
        words += ["--trainer.callbacks+", callback]
    spec = load_spec(toy_file, parse(words).overrides)
    assert spec.methods["arcface"]["trainer"]["callbacks"] == ["ValidateFirst", "LearningRateMonitor"]
