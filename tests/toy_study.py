"""A study that takes seconds: a tiny random trunk on a few letters, 2 methods x (3 trials + 2 runs) x 2 folds."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from levelfield.analysis.results import write_tables
from levelfield.core.ledger import Evaluation, begin
from levelfield.study import run
from levelfield.study.folder import StudyFolder
from levelfield.study.rows import load_spec
from levelfield.study.spec import StudySpec

TOY = """
name: toy
base:
  - model:
      trunk: {class_path: levelfield.models.TimmTrunk, init_args: {name: test_resnet, weights: null}}
      embedding_size: 16
    data:
      dataset: {class_path: Glyphs, init_args: {num_classes: 32, image_size: 32}}
      transforms: {crop_size: 32, resize: 32, scale: [0.6, 1.0], horizontal_flip: false}
      steps_per_epoch: 2
      batch_size: 16
      samples_per_class: 4
    trainer: {max_epochs: 2, accelerator: cpu, log_every_n_steps: 1}
methods:
  contrastive: {model: {loss: ContrastiveLoss}}
  arcface: {model: {loss: ArcFaceLoss}, data: {samples_per_class: 1}}
spaces:
  contrastive: {model.loss.init_args.neg_margin: {low: 0.1, high: 1.0}}
  arcface:
    model.loss.init_args.margin: {low: 0.0, high: 90.0}
    model.loss_lr: {low: 1.0e-4, high: 1.0, scale: log}
search: {trials: 3}
folds: 2
runs: 2
threads: 1
"""


@pytest.fixture(scope="session")
def toy_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("study_file") / "toy.yaml"
    path.write_text(TOY)
    return path


@pytest.fixture
def spec(toy_file: Path) -> StudySpec:
    return load_spec(toy_file)


def run_study(folder: Path, spec: StudySpec, *args: Any, **kwargs: Any) -> StudyFolder:
    """A study's results and the tables made of them."""
    study = run.run_study(StudyFolder(folder, spec), *args, **kwargs)
    write_tables(study)
    return study


def evaluated(folder: Path, by: str = "study toy", reason: str = "") -> str:
    """Id of a new line in the ledger of a folder, of the test classes that its earlier lines are of."""
    samples = [hashlib.sha256(str(folder).encode()).hexdigest()]
    return begin(Evaluation(data="glyphs", samples=samples, by=by, reason=reason), folder)


def assert_same_bytes(folder: Path, finished: Path) -> None:
    """The tables, and every result but its times, what computed it, and the logs, which hold times."""
    for name in ("results.csv", "summary.csv"):
        assert (folder / name).read_bytes() == (finished / name).read_bytes()
    differs, of_both = ("seconds", "provenance", "files", "evaluation"), []
    for each in (folder, finished):
        found = {path.relative_to(each): json.loads(path.read_text()) for path in each.rglob("jobs/**/result.json")}
        of_both.append({path: {k: v for k, v in one.items() if k not in differs} for path, one in found.items()})
    assert of_both[0] == of_both[1]


@pytest.fixture(scope="session")
def finished(toy_file: Path, shared: Callable[[str, Callable[[Path], Any]], Path]) -> Path:
    """The folder of the toy study, run without a disturbance. Copy it before changing it."""
    return shared("toy", lambda folder: run_study(folder, load_spec(toy_file)))


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished toy study, to be changed."""
    return Path(shutil.copytree(finished, tmp_path / "copy"))
