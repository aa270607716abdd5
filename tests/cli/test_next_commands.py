"""The commands that levelfield prints after `next:` work when typed into the same shell."""

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from miniatures import MINIATURES
from no_skips_in_ci import real_data
from refused import succeeded
from tiny_fit import TINY
from typed import parse

from levelfield import Study
from levelfield.study.archive import write_archive
from levelfield.study.folder import StudyFolder

TABLES = "results.csv and summary.csv match the stored"
ONE_EPOCH = ("--model.loss", "ContrastiveLoss", "--trainer.max_epochs", "1")


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory without files, and no data sets but those of the options."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("LEVELFIELD_DATA", raising=False)
    return tmp_path


def next_line(printed: str) -> str:
    (line,) = (line for line in printed.splitlines() if line.startswith("next: "))
    return line


def commands_of(line: str) -> list[list[str]]:
    """The words of each `levelfield` command of a line."""
    return [shlex.split(each)[1:] for each in line[line.index("levelfield ") :].split(" && ")]


def typed(line: str) -> list[str]:
    """The words of the only command of a line."""
    (words,) = commands_of(line)
    return words


@pytest.mark.parametrize(("data", "options"), [("glyphs", ()), ("named", ("--data.fold", "none"))])
def test_after_a_fit(data: str, options: tuple[str, ...], run: Callable, desk: Path) -> None:
    if data == "named":
        MINIATURES["cub200"](desk / "data")
        options = (*options, "--data.dataset", "CUB200", "--data.root", "data", "--data.num_folds", "2")
    words = [word for word in TINY if data == "glyphs" or word not in ("--data.dataset.num_classes", "40")]
    printed = succeeded(run("fit", *words, *ONE_EPOCH, *options))
    succeeded(run(*typed(next_line(printed))))


@pytest.fixture
def studied(run: Callable, finished: Path, toy_file: Path, desk: Path) -> Callable[..., str]:
    """What is printed next after a finished study of this name, which has nothing to train."""

    def study(name: str = "toy", **keys: object) -> str:
        shutil.copytree(finished, desk / "here", dirs_exist_ok=True)
        content = {**yaml.safe_load(toy_file.read_text()), "name": name, **keys}
        (desk / f"{name}.yaml").write_text(yaml.safe_dump(content))
        printed = succeeded(run("study", "run", f"{name}.yaml", "--output", "here"))
        return next_line(printed)

    return study


def added(words: list[str]) -> list[str]:
    """The names of the methods that a command adds to its study; they are imported."""
    arguments = parse(words[1:])
    study = Study(arguments.file, output=arguments.output, add_methods=arguments.add_method)
    methods = [*study.asked.spec.methods]
    return methods[len(methods) - len(arguments.add_method) :]


@pytest.mark.slow
def test_a_study_leads_to_a_loss_that_it_lacks_or_to_another_study(studied: Callable, desk: Path) -> None:
    assert added(typed(studied())) == ["supcon"]
    words = typed(studied("smoke"))
    assert (added(words), words[:3]) == ([], ["study", "run", "quickstart"])


@pytest.fixture(scope="module")
def real_root() -> Path:
    """Found before `desk` hides it."""
    return real_data("grocery_store").parent


def test_the_quickstart_leads_to_a_fair_study_of_photographs(real_root, studied, run, desk):
    prepare, study = commands_of(studied("quickstart"))
    assert prepare == ["data", "prepare", "grocery_store", "--root", "data"]
    (desk / "data").symlink_to(real_root)  # in place of the download
    printed = succeeded(run(*study, "--dry-run"))
    assert "6 jobs in the search, 6 in the runs" in printed


def test_a_report_leads_to_a_check_that_says_what_it_compared(run: Callable, copy: Path, desk: Path) -> None:
    archive = write_archive(StudyFolder.begun(copy), desk / "toy.tar.xz")
    printed = succeeded(run("study", "report", archive.name, "--output", "unpacked"))
    for words, said in (
        (typed(next_line(printed)), f"unpacked: {TABLES} results, to the last bit"),
        (("study", "verify", archive.name), f"toy.tar.xz: {TABLES} results, to the last bit"),
        (("study", "verify", str(copy)), f"{copy}: {TABLES} embeddings and results, to the last bit"),
        (("study", "status", archive.name), "toy in toy.tar.xz"),
    ):
        code, printed, _ = run(*words)
        assert (code, printed.splitlines()[0]) == (0, said)
