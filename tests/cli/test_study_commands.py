"""`levelfield study`: what it prints, what it finds, and that the commands after `next:` work as printed."""

import json
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from miniatures import MINIATURES
from no_skips_in_ci import real_data
from printed import numbers
from refused import refused, succeeded
from study_engine import TABLES, tables
from tiny_fit import TINY
from toy_study import TOY
from typed import parse

from levelfield.study.archive import write_archive
from levelfield.study.folder import StudyFolder

OWN_LOSS = "from torch.nn import Module\n\nclass MyLoss(Module):\n    def forward(self, x, labels):\n"
OWN_LOSS += "        return -x[labels == labels[0]].mean(0).norm()\n"


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toy_file: Path) -> Path:
    """A working directory with configs/study/toy.yaml, and no data sets but those of the options."""
    (tmp_path / "configs/study").mkdir(parents=True)
    shutil.copy(toy_file, tmp_path / "configs/study")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.delenv("LEVELFIELD_DATA", raising=False)
    return tmp_path


def test_report_prints_the_table_and_derives_the_files_anew(desk, finished, run, monkeypatch):
    monkeypatch.setenv("LEVELFIELD_CACHE", str(desk / "cache"))  # of a user who has evaluated nothing else
    folder = Path(shutil.copytree(finished, desk / "outputs" / "toy"))
    for name in TABLES:
        (folder / name).unlink()
    printed = succeeded(run("study", "report", "toy"))
    assert tables(folder) == tables(finished)
    assert all(word in printed for word in ("features, PCA to 16", "Contrastive", "ArcFace", "once"))
    page, output = (line.split()[-1] for line in printed.splitlines()[-2:])
    assert output == "outputs/toy"
    lines = Path(page).read_text().splitlines()
    (differs,) = (line for line in lines if "<li>" in line and "data.samples_per_class" in line)
    assert ("ArcFace: " in differs, numbers(differs)[-2:]) == (True, [1, 4])


def test_status_counts_jobs_and_tells_the_time_left(desk, finished, run):
    jobs = Path(shutil.copytree(finished, desk / "somewhere")) / "jobs/arcface"
    for number in range(2):
        (jobs / f"run{number}/fold1/result.json").unlink()
    for path in jobs.glob("*/fold*/result.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "seconds": 60.0}))
    printed = succeeded(run("study", "status", "toy.yaml", "--output", "somewhere"))
    counts = {line.split()[0]: numbers(line) for line in printed.splitlines() if line}
    assert [counts[key] for key in ("done", "running", "to", "left")] == [[21, 23], [], [2], [2]]


WITH_A_FOLDER = {
    "resume outputs/toy --runs 3": r"--runs\b|\bruns\b",
    "resume outputs/toy --search.trials 4": r"search\.trials .*--recompute",
    "resume outputs/toy --trainer.max_epochs 4": r"max_epochs .*--recompute",
    "resume outputs/toy --add-method TripletMarginLoss": "--add-method",
    "resume outputs/toy --output other": "--output other",
    "resume outputs/toy --rusn.x 1": r"--rusn\.x",
    "run outputs/toy": "outputs/toy .*levelfield study resume",
}


@pytest.mark.slow
def test_resume_takes_the_settings_from_the_folder(desk, finished, run):
    folder = Path(shutil.copytree(finished, desk / "outputs" / "toy"))
    file = desk / "configs" / "study" / "toy.yaml"
    file.write_text(file.read_text().replace("runs: 2", "runs: 3"))
    refused(run("study", "run", "toy"), "runs")
    said = succeeded(run("study", "resume", "toy")).splitlines()[0]
    assert "2 runs" in said, "as in outputs/toy/study.yaml, not in configs/study/toy.yaml"
    file.unlink()
    for command in ("resume", "status", "report", "verify"):
        succeeded(run("study", command, "outputs/toy"))
    succeeded(run("study", "resume", "outputs/toy", "--data.root", "elsewhere"))  # this changes no number
    assert "root: elsewhere" in (folder / "study.yaml").read_text()
    assert tables(folder) == tables(finished)
    for words, key in WITH_A_FOLDER.items():
        assert re.search(key, refused(run("study", *words.split())))


@pytest.mark.slow
def test_the_command_printed_next_adds_a_loss_to_a_study_that_was_given_options(desk, run):
    (desk / "more.yaml").write_text("model: {embedding_size: 12}\n")
    (desk / "my_loss.py").write_text(OWN_LOSS)
    options = ["--config", "more.yaml", "--search.trials", "1", "--runs=1", "--trainer.max_epochs=1"]
    printed = succeeded(run("study", "run", "toy.yaml", *options, "--output", "here"))
    printed = succeeded(run(*typed(next_line(printed))[:-1], "my_loss.MyLoss"))
    assert (desk / "here/jobs/my_loss/run0/test/result.json").exists()
    assert "my_loss" in (desk / "here/results.csv").read_text()
    assert "--add-method" not in printed
    rows = [line.split()[0] for line in printed.splitlines() if line.startswith("  ") and line.strip()]
    assert (rows[-4], {*rows[-3:]}) == ("features,", {"Contrastive", "ArcFace", "my_loss"})
    assert "mean of 1 run\n" in printed, "the override of the number of runs"
    assert "my_loss (" in printed, "nothing says what to search"


def test_dotted_options_are_overrides_wherever_they_stand() -> None:
    words = "run --data.root DIR toy.yaml --trainer.max_epochs=2 --runs 3 --output x --data.dataset.table t.csv"
    arguments = parse([*words.split(), "--data.dataset=Omniglot", "--executor.workers", "2"])
    assert (arguments.file, arguments.output, arguments.options) == ("toy.yaml", Path("x"), {"workers": 2})
    given = {"data.root": "DIR", "trainer.max_epochs": 2, "runs": 3, "data.dataset.table": "t.csv"}
    assert [*arguments.overrides.items()] == [*given.items(), ("data.dataset", "Omniglot")]


def next_line(printed: str) -> str:
    (line,) = (line for line in printed.splitlines() if line.startswith("next: "))
    return line


def typed(line: str) -> list[str]:
    """The words of the only command of a line, without `levelfield`."""
    return shlex.split(line[line.index("levelfield ") :])[1:]


@pytest.mark.parametrize(("data", "options"), [("glyphs", ()), ("named", ("--data.fold", "none"))])
def test_after_a_fit(data: str, options: tuple[str, ...], run: Callable, desk: Path) -> None:
    if data == "named":
        MINIATURES["cub200"](desk / "data")
        options = (*options, "--data.dataset", "CUB200", "--data.root", "data", "--data.num_folds", "2")
    words = [word for word in TINY if data == "glyphs" or word not in ("--data.dataset.num_classes", "40")]
    words += ["--model.loss", "ContrastiveLoss", "--trainer.max_epochs", "1", *options]
    printed = succeeded(run("fit", *words))
    succeeded(run(*typed(next_line(printed))))


@pytest.fixture
def studied(run: Callable, finished: Path, desk: Path) -> Callable[..., str]:
    """What is printed next after a finished study of this name, which has nothing to train."""

    def study(name: str) -> str:
        shutil.copytree(finished, desk / "here", dirs_exist_ok=True)
        (desk / f"{name}.yaml").write_text(TOY.replace("name: toy", f"name: {name}"))
        return next_line(succeeded(run("study", "run", f"{name}.yaml", "--output", "here")))

    return study


@pytest.mark.slow
@pytest.mark.parametrize(("name", "listed"), [("toy", "supcon: "), ("smoke", "quickstart: ")])
def test_a_study_leads_to_a_loss_that_it_lacks_or_to_another_study(name, listed, studied, run):
    assert listed in succeeded(run(*typed(studied(name)), "--dry-run"))


@pytest.fixture(scope="module")
def real_root() -> Path:
    """Found before `desk` hides it."""
    return real_data("grocery_store").parent


def test_the_quickstart_leads_to_a_fair_study_of_photographs(real_root, studied, run, desk):
    line = studied("quickstart")
    prepare, study = (shlex.split(each)[1:] for each in line[line.index("levelfield ") :].split(" && "))
    assert prepare == ["data", "prepare", "grocery_store", "--root", "data"]
    (desk / "data").symlink_to(real_root)  # in place of the download
    assert "6 jobs in the search, 6 in the runs" in succeeded(run(*study, "--dry-run"))


def test_a_report_leads_to_a_check_that_says_what_it_compared(run: Callable, copy: Path, desk: Path) -> None:
    archive = write_archive(StudyFolder.begun(copy), desk / "toy.tar.xz").name
    printed = succeeded(run("study", "report", archive, "--output", "unpacked"))
    for words, said in (
        (typed(next_line(printed)), "unpacked: "),
        (("study", "verify", archive), f"{archive}: "),
        (("study", "verify", str(copy)), f"{copy}: "),
    ):
        first = succeeded(run(*words)).splitlines()[0]
        assert first.startswith(said)
        assert ("embeddings" in first) == (said == f"{copy}: "), "an archive has none"
    assert archive in succeeded(run("study", "status", archive)).splitlines()[0]
