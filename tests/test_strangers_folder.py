"""A folder of a stranger: files with the names of modules, and names that a terminal would obey."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from PIL import Image
from refused import refused, succeeded
from tiny_fit import TINY

from levelfield.core.terminal import printable
from levelfield.study.archive import write_archive
from levelfield.study.folder import StudyFolder

CLEAR = "\x1b[2J\x1b]0;title\x07"  # clears the terminal and sets its title


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEVELFIELD_CACHE", str(tmp_path.parent / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place not in ("", str(tmp_path))])
    return tmp_path


def searched(here: Path) -> bool:
    return not {"", str(here)}.isdisjoint(sys.path)


@pytest.mark.parametrize(
    "words",
    [
        ("data", "list", "glyphs"),
        ("fit", *TINY, "--model.loss", "ContrastiveLoss", "--print_config"),
        ("study", "run", "smoke.yaml", "--dry-run"),
        ("predict", "--ckpt_path", "{fitted}/best.ckpt", "--data", "images.csv"),
    ],
)
def test_the_working_directory_is_searched_for_no_module_that_nobody_names(words, here, fitted, run) -> None:
    """Python tries to import `winreg` on Linux too."""
    (here / "images").mkdir()
    Image.new("RGB", (40, 40)).save(here / "images" / "0.png")
    (here / "images.csv").write_text("path\nimages/0.png\n")
    for name in ("winreg", "smoke", "study", "Glyphs"):
        (here / f"{name}.py").write_text("raise SystemExit('ran')\n")
    succeeded(run(*(word.format(fitted=fitted) for word in words)))
    assert not searched(here)


@pytest.mark.processes
@pytest.mark.parametrize(
    "module", ["levelfield", pytest.param("levelfield.study.training_job", marks=pytest.mark.full)]
)
def test_python_m_does_not_search_it_either(module, here) -> None:
    for name in ("winreg", "_winapi", "yaml", "torch"):
        (here / f"{name}.py").write_text("raise SystemExit('ran')\n")
    done = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True)
    assert "ran" not in done.stderr


def test_a_module_that_is_named_is_found_there(here, run) -> None:
    (here / "my_loss.py").write_text("from levelfield.losses import ContrastiveLoss as Mine\n")
    succeeded(run("fit", *TINY, "--model.loss", "my_loss.Mine", "--print_config"))
    assert searched(here)


def test_a_study_that_is_read_imports_no_learner_that_it_names_and_one_that_runs_finds_it(here, finished, run) -> None:
    (here / "own_learner.py").write_text("from levelfield import MetricLearner as Mine\n")
    folder = Path(shutil.copytree(finished, here / "study"))
    content = yaml.safe_load((folder / "study.yaml").read_text())
    for config in content["methods"].values():
        config["model"]["learner"] = "own_learner.Mine"
    (folder / "study.yaml").write_text(yaml.safe_dump(content))
    sys.path.append(str(here))  # as if it were installed
    for command in ("status", "report", "verify"):
        refused(run("study", command, folder), "belongs to another configuration")
        assert "own_learner" not in sys.modules, command
    sys.path.remove(str(here))
    refused(run("study", "resume", folder, "--trainer.max_epochs", "3"), "another")
    assert "own_learner" in sys.modules
    assert searched(here)


def test_names_of_files_and_in_an_archive_are_printed_without_control_characters(here, fitted, finished, run) -> None:
    images = here / "images"
    for name in ("a", f"b{CLEAR}"):
        (images / name).mkdir(parents=True)
        for number in range(2):
            Image.new("RGB", (40, 40), (90 * number, 0, 0)).save(images / name / f"{number}{CLEAR}.png")
    (images / "a" / f"torn{CLEAR}.png").write_bytes(b"no image")
    folder = Path(shutil.copytree(finished, here / "study"))
    content = yaml.safe_load((folder / "study.yaml").read_text())
    (folder / "study.yaml").write_text(yaml.safe_dump({**content, "name": f"toy{CLEAR}"}))
    archive = write_archive(StudyFolder.begun(folder), here / "theirs.tar.xz")
    best, query = fitted / "best.ckpt", next(images.glob("b*/0*.png"))
    for words in (
        ("predict", "--ckpt_path", best, "--data", images),
        ("predict", "--ckpt_path", best, "--data", images, "--skip-broken"),
        ("search", "--ckpt_path", best, images, "--query", query, "--skip-broken"),
        ("data", "verify", images),
        ("compare", f"missing{CLEAR}"),
        ("study", "status", archive),
        ("study", "report", archive, "--output", here / "out"),
        ("study", "verify", archive),
    ):
        code, printed, complaint = run(*words)
        assert code in (0, 2), complaint
        assert (printed + complaint) == printable(printed + complaint), words
        assert words[:1] == ("study",) or "\\x1b" in printed + complaint, words


def test_an_image_that_links_to_itself_is_named(here, fitted, run) -> None:
    (here / "loop.png").symlink_to("loop.png")
    refused(run("predict", "--ckpt_path", fitted / "best.ckpt", "--data", here), f"{here}/loop.png")
