"""CONTRIBUTING.md says what one touches to add a part: true of a dummy of each kind, added to a copy."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_fit import REPOSITORY

ROWS = re.findall(r"^\| ([a-z ]+) \| (`src/.*) \|$", (REPOSITORY / "CONTRIBUTING.md").read_text(), re.M)
TABLE = "src/levelfield/metrics/table.py"
LOSS = """
from levelfield.losses.contrastive import ContrastiveLoss


class DummyLoss(ContrastiveLoss):
    '''Nothing.

        L = 0

    Cost: B^2. When: never.
    Paper: Nobody 2026, "Nothing", arXiv:2601.00000.
    '''
"""
DATA = """
from levelfield.data.datasets.glyphs import Glyphs


class DummyData(Glyphs):
    '''Letters. Tested with: nothing.'''

    name = "dummy_data"
"""
FIGURE = """
from levelfield.report.figures import ReportFigure
from levelfield.report.figures.style import new_figure

FIGURE = ReportFigure("Dummies", "A dummy", lambda results: new_figure(1.0))
"""
METRIC = '''def dummy_metric(places: Places) -> Float64[Tensor, " queries"]:
    """Twice the rank of the first match.

        2 m(1)

    When: never.
    Paper: Nobody 2026, "Nothing", arXiv:2601.00000.
    """
    return 2 * places.first_Q.double()


@dataclass(frozen=True)
class Metric:'''
CONFIGS = {
    "loss": "model: {loss: {class_path: levelfield.losses.DummyLoss, init_args: {neg_margin: 0.5}}}\n"
    "search: {model.loss.init_args.neg_margin: {low: 0.1, high: 1.0, scale: linear}}\n",
    "data set": "data: {dataset: {class_path: levelfield.data.datasets.DummyData}}\n",
}
# Of each way by which a part is found, one kind.
WRITTEN = {"loss": LOSS, "data set": DATA, "metric": "", "figure": FIGURE}
# What the copy's own tests of a part are: here, that each door finds the dummies.
FINDS = """
import torch
from toy_study import TOY
from levelfield.metrics import retrieval_metrics
from levelfield.report.page import write_report
from levelfield.study.folder import StudyFolder
from levelfield.study.rows import load_spec

def test_every_door_finds_its_dummy(run, tmp_path):
    files = ("--config=configs/data/dummy_data.yaml", "--config=configs/method/dummy_loss.yaml")
    code, printed, complaint = run("fit", *files, "--print_config")
    assert code == 0, complaint
    assert "DummyLoss" in printed
    assert "1,228" in run("data", "list", "dummy_data")[1]
    found = retrieval_metrics(torch.eye(3), torch.tensor([0, 1, 0]), metrics=("dummy_metric",))
    assert found["dummy_metric"] == 2 * (2 + 1) / 2  # of two equal similarities the match comes first, and second
    (tmp_path / "toy.yaml").write_text(TOY + "metrics: [dummy_metric]\\n")
    spec = load_spec(tmp_path / "toy.yaml")
    assert 'alt="A dummy"' in write_report(StudyFolder(tmp_path, spec)).read_text()
"""
CHECKED = "tests/scripts/test_lists_words_and_pictures.py"


def digests(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def run_in(copy: Path, *words: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(copy / "src")}
    command = [sys.executable, "-B", *words]
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_the_folders_of_the_table_are_there() -> None:
    assert {kind for kind, _ in ROWS} == {*WRITTEN, "miner", "regularizer", "embedder", "sampler", "executor"}
    assert all((REPOSITORY / path).parent.is_dir() for _, cells in ROWS for path in re.findall(r"`(\S+/\S+)`", cells))


@pytest.mark.full
@pytest.mark.processes
def test_the_table_of_contributing_is_what_happens(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for name in ("src", "tests", "docs", "configs", "scripts"):
        shutil.copytree(REPOSITORY / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(REPOSITORY / name, copy)
    before, touched, tests = digests(copy), set(), []
    for kind, cells in ((kind, cells) for kind, cells in ROWS if kind in WRITTEN):
        for path in re.findall(r"`(\S+/\S+)`", cells):
            path = path.replace("NAME", f"dummy_{kind.split()[0]}")
            touched.add(path)
            if path.startswith("tests/"):
                tests.append(path)
                (copy / path).write_text(FINDS if kind == "loss" else "def test_dummy():\n    pass\n")
            elif path.startswith("configs/"):
                (copy / path).write_text(CONFIGS[kind])
            elif path != TABLE:
                (copy / path).write_text(WRITTEN[kind])
    table = (copy / TABLE).read_text().replace("@dataclass(frozen=True)\nclass Metric:", METRIC)
    row = '    Metric("dummy_metric", "Dummy", "queries", dummy_metric, depth="all"),\n'
    (copy / TABLE).write_text(table.replace("METRICS = (\n", f"METRICS = (\n{row}"))
    run_in(copy, "scripts/lists.py")
    changed = {path for path, digest in digests(copy).items() if digest != before.get(path)}
    assert changed > touched
    assert changed - touched == {
        *(f"src/levelfield/{package}/__init__.py" for package in ("losses", "data/datasets")),
        *(f"docs/{page}.md" for page in ("losses", "datasets", "metrics")),
    }
    which = ("-p", "no:cacheprovider", "-m", "not full", "-k", "dummy or list or configuration")
    run_in(copy, "-m", "pytest", *which, CHECKED, *tests)
