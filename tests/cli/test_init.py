"""`levelfield init`: what the wheel writes is a project that tests, trains and compares."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from refused import refused
from tiny_fit import REPOSITORY

TEMPLATE = REPOSITORY / "templates" / "my_project"
FILES = {
    *(".github/workflows/test.yml", ".gitignore", "README.md", "pyproject.toml", "study.ipynb", "study.yaml"),
    *("src/mine/__init__.py", "src/mine/my_loss.py", "sweep.yaml", "tests/test_my_loss.py", "train.py"),
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The content of the wheel, byte-compiled as pip does it."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-d", folder]
    subprocess.run(build, cwd=REPOSITORY, check=True, capture_output=True, timeout=60)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        names = {name.partition("/templates/my_project/")[2] for name in archive.getnames()}
    assert names >= {file.replace("mine", "my_project") for file in FILES}
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(folder / "site")
    subprocess.run([sys.executable, "-m", "compileall", "-q", folder / "site/levelfield/templates"], check=True)
    return folder / "site"


@pytest.fixture(scope="module")
def there(site: Path) -> Callable[..., subprocess.CompletedProcess]:
    """Runs Python in a folder, with the wheel."""
    environment = {**os.environ, "PYTHONPATH": f"{site}:src", "OMP_NUM_THREADS": "1"}

    def there(folder: Path, *words: str) -> subprocess.CompletedProcess:
        done = subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    return there


@pytest.fixture(scope="module")
def project(there: Callable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("empty")
    assert there(folder, "-m", "levelfield", "init", "mine").stderr == ""
    return folder / "mine"


def test_the_wheel_carries_every_configuration(site: Path, there: Callable, tmp_path: Path) -> None:
    configs = REPOSITORY / "configs"
    for file in configs.rglob("*.yaml"):
        assert (site / "levelfield/configs" / file.relative_to(configs)).read_bytes() == file.read_bytes()
    code = "from levelfield.core import configuration; print(configuration.find_configuration('data/glyphs.yaml'))"
    assert Path(there(tmp_path, "-c", code).stdout.strip()) == site / "levelfield/configs/data/glyphs.yaml"


def test_the_files_have_the_projects_name(project: Path) -> None:
    files = {str(file.relative_to(project)): file for file in project.rglob("*") if file.is_file()}
    assert set(files) == FILES
    assert not [name for name, file in files.items() if "my_project" in file.read_text()]
    assert len(files["train.py"].read_text().splitlines()) <= 40


WORDS = [["-m", "pytest", "-q"], pytest.param(["train.py", "--epochs", "1", "--steps", "2"], marks=pytest.mark.full)]


@pytest.mark.processes
@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_its_commands_end_well(words: list[str], project: Path, there: Callable, tmp_path: Path) -> None:
    printed = there(shutil.copytree(project, tmp_path / "mine"), *words).stdout
    assert "4 passed" in printed or "validation MAP@R 0." in printed


FEW = {"num_classes: 96": "num_classes: 16", "_epoch: 20": "_epoch: 2", "epochs: 3": "epochs: 1", "runs: 3": "runs: 1"}


@pytest.mark.full
@pytest.mark.processes
def test_its_notebook_runs_its_study(project: Path, there: Callable, tmp_path: Path) -> None:
    folder = shutil.copytree(project, tmp_path / "mine")
    text = (folder / "study.yaml").read_text()
    for full, less in FEW.items():
        assert full in text
        text = text.replace(full, less)
    (folder / "study.yaml").write_text(text)
    cells = json.loads((folder / "study.ipynb").read_text())["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    printed = there(folder, "-c", f"{code}\nprint(*scores.method)").stdout
    assert {*printed.splitlines()[-1].split()} == {"pretrained", "my_loss", "contrastive", "multi_similarity"}


NAMES = "my-project 1st class ends_ .. torch json levelfield train full file"


@pytest.mark.parametrize("name", NAMES.split())
def test_a_name_that_cannot_be_is_refused(name, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("full").mkdir()
    Path("full/thesis.tex").touch()
    Path("file").touch()
    refused(run("init", name), name)
    assert {path.name for path in tmp_path.rglob("*")} == {"full", "thesis.tex", "file"}


def test_an_empty_folder_is_filled(run: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path / "mine")
    code, _, complaint = run("init", ".")
    assert (code, complaint) == (0, "")
    assert Path("src/mine/my_loss.py").read_bytes() == (TEMPLATE / "src/my_project/my_loss.py").read_bytes()


def test_its_loss_is_the_example_of_the_clone() -> None:
    """A wheel has no examples, so there are two files, whose first sentences differ."""
    ours, example = TEMPLATE / "src/my_project/my_loss.py", REPOSITORY / "examples/my_loss.py"
    code = [file.read_text().partition('"""\n\nfrom ')[2] for file in (ours, example)]
    assert code[0] == code[1] != ""
