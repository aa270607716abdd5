"""CONTRIBUTING.md says what one touches to add a loss, a miner, ...: true of a dummy of each, added to a copy."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_fit import REPOSITORY

LOSS = '''
from levelfield.losses.pairs import PairLoss


class DummyLoss(PairLoss):
    """Positives pulled.

        L = mean_(i,p) 1 - s_ip

    Cost: B^2. When: never.
    Paper: Nobody 2026, "Nothing", arXiv:2601.00000.
    """

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        self.weight = weight

    def pair_loss(self, matrix, positives, negatives):
        return self.weight * (positives * (1 - matrix)).sum() / positives.sum().clamp_min(1)
'''
MINER = '''
from levelfield.miners.base import Miner


class DummyMiner(Miner):
    """Everything.

    Paper: Nobody 2026, "Nothing", arXiv:2601.00000.
    """

    def mine(self, matrix, positives, negatives):
        return *positives.nonzero(as_tuple=True), *negatives.nonzero(as_tuple=True)
'''
REGULARIZER = '''
from levelfield.regularizers.base import Regularizer


class DummyRegularizer(Regularizer):
    """Small numbers.

        R = mean_ik abs(x_ik)

    Cost: B D. When: never.
    Paper: Nobody 2026, "Nothing", arXiv:2601.00000.
    """

    def penalty(self, points):
        return points.abs().mean()
'''
EMBEDDER = '''
from levelfield.models.embedders import LinearEmbedder


class DummyEmbedder(LinearEmbedder):
    """One linear layer once more."""
'''
DATA = '''
from levelfield.data.datasets.glyphs import Glyphs


class DummyData(Glyphs):
    """Letters once more.

    Tested with: the typefaces themselves.
    """

    name = "dummy_data"
'''
SAMPLER = '''
from levelfield.data.samplers.shuffled import ShuffledBatchSampler


class DummyBatchSampler(ShuffledBatchSampler):
    """A random order once more.

    When: never.
    """
'''
METRIC = '''
def dummy_metric(places: Places) -> Float64[Tensor, " queries"]:
    """Twice the rank of the first match.

        2 m(1)

    When: never.
    Paper: Nobody 2026, "Nothing", arXiv:2601.00000.
    """
    return 2 * places.first_Q.double()


@dataclass(frozen=True)
class Metric:'''
FIGURE = """
from levelfield.report.figures import ReportFigure
from levelfield.report.figures.style import new_figure

FIGURE = ReportFigure("Dummies", "A dummy", lambda results: new_figure(1.0))
"""
EXECUTOR = '''
from levelfield.study.executors.local import Local


class DummyExecutor(Local):
    """This machine once more."""
'''
PRINTS = """
def test_the_command_line_knows_it(run):
    code, printed, complaint = run("fit", "--config", "configs/data/glyphs.yaml", {words}, "--print_config")
    assert code == 0, complaint
    assert "{name}" in printed
"""
# Kind: the files that one writes.
WRITTEN = {
    "loss": {
        "src/levelfield/losses/dummy_loss.py": LOSS,
        "configs/method/dummy_loss.yaml": "model: {loss: {class_path: levelfield.losses.DummyLoss, init_args: {}}}\n"
        "search: {model.loss.init_args.weight: {low: 0.5, high: 2.0, scale: log}}\n",
        "tests/losses/test_dummy_loss.py": PRINTS.format(words='"--model.loss", "DummyLoss"', name="DummyLoss"),
    },
    "miner": {
        "src/levelfield/miners/dummy_miner.py": MINER,
        "tests/miners/test_dummy_miner.py": PRINTS.format(
            words='"--model.loss", "ContrastiveLoss", "--model.miner", "DummyMiner"', name="DummyMiner"
        ),
    },
    "regularizer": {
        "src/levelfield/regularizers/dummy_regularizer.py": REGULARIZER,
        "configs/method/ntxent_dummy_regularizer.yaml": """
model:
  loss: {class_path: levelfield.losses.NTXentLoss, init_args: {temperature: 0.07}}
  regularizer: {class_path: levelfield.regularizers.DummyRegularizer, init_args: {weight: 0.1}}
search:
  model.loss.init_args.temperature: {low: 0.001, high: 10.0, scale: log}
  model.regularizer.init_args.weight: {low: 0.01, high: 1.0, scale: log}
""",
        "tests/regularizers/test_dummy_regularizer.py": PRINTS.format(
            words='"--model.loss", "ContrastiveLoss", "--model.regularizer", "DummyRegularizer"',
            name="DummyRegularizer",
        ),
    },
    "embedder": {
        "src/levelfield/models/dummy_embedder.py": EMBEDDER,
        "tests/models/test_dummy_embedder.py": PRINTS.format(
            words='"--model.loss", "ContrastiveLoss", "--model.embedder", "DummyEmbedder"', name="DummyEmbedder"
        ),
    },
    "data set": {
        "src/levelfield/data/datasets/dummy_data.py": DATA,
        "configs/data/dummy_data.yaml": "data: {dataset: {class_path: levelfield.data.datasets.DummyData}}\n",
        "tests/data/datasets/test_dummy_data.py": """
def test_the_command_line_knows_it(run):
    code, printed, _ = run("data", "list", "dummy_data")
    assert code == 0
    assert "1,228" in printed
    words = ("--config", "configs/data/dummy_data.yaml", "--model.loss", "ArcFaceLoss", "--print_config")
    assert "DummyData" in run("fit", *words)[1]
""",
    },
    "sampler": {
        "src/levelfield/data/samplers/dummy_sampler.py": SAMPLER,
        "tests/data/samplers/test_dummy_sampler.py": PRINTS.format(
            words='"--model.loss", "ContrastiveLoss", "--data.sampler", "DummyBatchSampler"', name="DummyBatchSampler"
        ),
    },
    "metric": {
        "tests/metrics/test_dummy_metric.py": """
import torch
from pathlib import Path
from toy_study import TOY
from levelfield.metrics import retrieval_metrics
from levelfield.study.rows import load_spec

def test_it_is_computed_and_a_study_may_ask_for_it(tmp_path):
    found = retrieval_metrics(torch.eye(3), torch.tensor([0, 1, 0]), metrics=("dummy_metric",))
    assert found["dummy_metric"] == 2 * (2 + 1) / 2  # of two equal similarities the match comes first, and second
    (tmp_path / "toy.yaml").write_text(TOY + "metrics: [dummy_metric]\\n")
    assert load_spec(tmp_path / "toy.yaml").metrics == ["dummy_metric"]
""",
    },
    "figure": {
        "src/levelfield/report/figures/dummy_figure.py": FIGURE,
        "tests/report/test_dummy_figure.py": """
from levelfield.report.page import write_report
from levelfield.study.rows import load_spec
from levelfield.study.folder import StudyFolder

def test_the_page_shows_it(toy_file, tmp_path):
    page = write_report(StudyFolder(tmp_path, load_spec(toy_file))).read_text()
    assert ">Dummies</h2>" in page
    assert 'alt="A dummy"' in page
""",
    },
    "executor": {
        "src/levelfield/study/executors/dummy_executor.py": EXECUTOR,
        "tests/study/test_dummy_executor.py": """
from toy_study import TOY
from levelfield.study.executors import make_slots
from levelfield.study.rows import load_spec

def test_the_command_line_finds_it(tmp_path):
    (tmp_path / "toy.yaml").write_text(TOY)
    slots = make_slots(load_spec(tmp_path / "toy.yaml"), "dummy_executor", {"workers": 2})
    assert type(slots).__name__ == "DummyExecutor"
    slots.stop()
""",
    },
}
TABLE = "src/levelfield/metrics/table.py"
CHECKED = (
    *("tests/scripts/test_lists.py", "tests/miners/test_other_miners.py"),
    *("tests/losses/test_loss_configs.py", "tests/losses/test_every_loss.py"),
)


def digests(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def run_in(copy: Path, *words: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(copy / "src")}
    command = [sys.executable, "-B", *words]
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.processes
def test_the_table_of_contributing_is_what_happens(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for name in ("src", "tests", "docs", "configs", "scripts"):
        shutil.copytree(REPOSITORY / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(REPOSITORY / name, copy)
    before = digests(copy)
    added = {path: text for files in WRITTEN.values() for path, text in files.items()}
    for path, text in added.items():
        (copy / path).write_text(text)
    table = (copy / TABLE).read_text()
    (copy / TABLE).write_text(
        table.replace("@dataclass(frozen=True)\nclass Metric:", METRIC.lstrip()).replace(
            "METRICS = (\n", 'METRICS = (\n    Metric("dummy_metric", "Dummy", "queries", dummy_metric, depth="all"),\n'
        )
    )
    run_in(copy, "scripts/lists.py")
    after = digests(copy)
    changed = {path for path in after if after[path] != before.get(path)}

    page = (REPOSITORY / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| ([a-z ]+) \| (`src/.*) \|$", page, re.M)
    touched = {}
    for kind, cells in rows:
        dummy = f"dummy_{kind.split()[0]}"
        touched[kind] = {path.replace("NAME", dummy) for path in re.findall(r"`(\S+/\S+)`", cells)}
    assert touched == {kind: set(files) | ({TABLE} if kind == "metric" else set()) for kind, files in WRITTEN.items()}
    made = changed - set().union(*touched.values())
    assert changed > set().union(*touched.values())
    assert {path for path in made if not path.startswith("docs/")} == {
        f"src/levelfield/{package}/__init__.py"
        for package in ("losses", "miners", "regularizers", "models", "data/datasets", "data/samplers")
    }
    assert {path for path in made if path.startswith("docs/")} == {
        f"docs/{page}.md" for page in ("losses", "trunks", "datasets", "metrics")
    }

    tests = [path for path in added if path.startswith("tests/")]
    which = ("-p", "no:cacheprovider", "-m", "not full", "-k", "dummy or Dummy or list or configuration")
    run_in(copy, "-m", "pytest", *which, *CHECKED, *tests)
