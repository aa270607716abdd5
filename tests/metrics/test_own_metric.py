"""A metric of one's own in a fit and in a study: what it is given, what it selects, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from by_sorting import cosines
from refused import refused, succeeded
from scipy.stats import skew
from toy_study import TOY

from levelfield.analysis.results import collect_rows
from levelfield.analysis.verify import validation_scores, verify_study
from levelfield.core.errors import UserError
from levelfield.experiment import Study
from levelfield.report.table import study_table
from levelfield.study.test_scores import EmbeddedTest

METRIC = """
import torch

calls = 0

def hubness(embeddings, labels):
    similarities = (embeddings @ embeddings.T).fill_diagonal_(-torch.inf)
    nearest = similarities.topk(5, dim=1).indices
    counts = nearest.flatten().bincount(minlength=len(labels)).double()
    return -(((counts - counts.mean()) / counts.std(correction=0)) ** 3).mean()

def fewer(embeddings, labels):
    global calls
    calls += 1
    return -calls

def nothing(embeddings, labels):
    return (embeddings - embeddings).sum() / 0

def many(embeddings, labels):
    return embeddings

constant = 3
"""
STUDY = f"""
name: own
{TOY[TOY.index("base:") : TOY.index("methods:")].replace("embedding_size: 16", "embedding_size: 8")}
methods:
  head: {{model: {{loss: ContrastiveLoss, freeze_trunk: true}}}}
spaces: {{head: {{model.embedder_lr: {{low: 1.0e-4, high: 1.0, scale: log}}}}}}
search: {{trials: 2}}
metrics: [mrr, my_metric.hubness]
selected_by: my_metric.hubness
folds: 2
runs: 1
threads: 1
"""
HUBNESS = "my_metric.hubness"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with `my_metric.py`."""
    (tmp_path / "my_metric.py").write_text(METRIC)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def by_scipy(embeddings: torch.Tensor) -> float:
    similarities = cosines(embeddings).fill_diagonal_(-torch.inf).numpy()
    return -skew(np.bincount(np.argsort(-similarities, axis=1)[:, :5].ravel(), minlength=len(embeddings)))


@pytest.mark.slow
def test_a_study_scores_and_selects_by_it(place: Path) -> None:
    file = place / "own.yaml"
    file.write_text(STUDY)
    study = Study(file, output=place / "out").run().record()
    state, rows = study.state, collect_rows(study)
    assert verify_study(study) == []
    for job, result in state.results.items():
        assert list(result["validation"]) == [HUBNESS] * (job.method != "pretrained_one_pca"), str(job)
        if study.spec.trains(job.method):
            scores = validation_scores(study.folder / job.path / "metrics.csv", HUBNESS)
            assert scores[result["best_epoch"]] == max(scores.values()) == result["validation"][HUBNESS]
    trials = state.trials("head")
    assert state.chosen("head") == max(trials, key=lambda trial: trial.value)
    tested = {row.method for row in rows if (row.stage, row.metric) == ("test", HUBNESS)}
    assert tested == {*study.spec.rows}
    for row in ("pretrained", "head"):
        ledger = json.loads(study.test_file(row, 0).read_text())
        (embedded,) = study.folder.glob(f"jobs/{row}/run0/fold1/tested.safetensors")
        result = json.loads((embedded.parent / "result.json").read_text())
        origin = {"checkpoint": result["checkpoint"], "evaluation": ledger["evaluation"]}
        found = EmbeddedTest.load(embedded, origin)
        assert ledger["separated"][1][HUBNESS] == pytest.approx(by_scipy(found.samples.embeddings), abs=0.05)
    mean = next(row.value for row in rows if (row.method, row.metric, row.stage) == ("head", HUBNESS, "test"))
    text = str(study_table(study))
    assert "my_metric.hubness: the number itself" in text
    assert f"{mean:.4g}"[:3] in text

    config = yaml.safe_load((study.folder / "jobs/head/run0/fold0/config.yaml").read_text())
    assert config["trainer"]["callbacks"][0]["init_args"]["selected_by"] == HUBNESS

    (place / "my_metric.py").write_text(METRIC.replace("topk(5", "topk(4"))
    with pytest.raises(UserError, match=r"my_metric\.py has changed"):
        Study(file, output=place / "out").run()


def test_early_stopping_and_the_best_epoch_follow_it(run, tiny: list[str], place: Path) -> None:
    validation = ["--trainer.callbacks+", "RetrievalValidation", "--trainer.callbacks.selected_by", "my_metric.fewer"]
    stopping = ["--trainer.callbacks+", "EarlyStopping", "--trainer.callbacks.monitor", "val/my_metric.fewer"]
    stopping += ["--trainer.callbacks.mode", "max", "--trainer.callbacks.patience", "2", "--trainer.max_epochs", "6"]
    words = ["fit", *tiny, "--model.loss", "ContrastiveLoss", "--output", str(place), *validation, *stopping]
    printed = succeeded(run(*words))
    folder = place / "fit" / "Glyphs-ContrastiveLoss" / "0"
    assert validation_scores(folder / "metrics.csv", "my_metric.fewer") == {0: -1.0, 1: -2.0, 2: -3.0}
    assert len(validation_scores(folder / "metrics.csv")) == 3, "the others are logged too"
    assert torch.load(folder / "best.ckpt", weights_only=True)["epoch"] == 0
    assert "best validation my_metric.fewer -1.0000 in epoch 0" in printed


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_metric.hubness", ["'no_metric'"]),
        ("my_metric.hubnes", ["my_metric", "'hubness'"]),
        ("my_metric.constant", ["my_metric.constant", "no function"]),
        ("my_metric.nothing", ["my_metric.nothing", "nan"]),
        ("my_metric.many", ["my_metric.many", "one number"]),
        ("nmi", ["selected_by", "nmi"]),
    ],
)
def test_a_fit_refuses_in_one_line(name: str, words: list[str], run, tiny: list[str], place: Path) -> None:
    validation = ["--trainer.callbacks+", "RetrievalValidation", "--trainer.callbacks.selected_by", name]
    refused(run("fit", *tiny, "--model.loss", "ContrastiveLoss", "--output", str(place), *validation), *words)


BY_MRR = {"class_path": "RetrievalValidation", "init_args": {"selected_by": "mrr"}}


@pytest.mark.parametrize(
    ("key", "value", "word"),
    [
        ("metrics", ["mrr", "no_metric.hubness"], "no_metric"),
        ("selected_by", "my_metric.hubnes", "'hubness'"),
        ("trainer.callbacks", BY_MRR, "selected_by"),
    ],
)
def test_a_study_refuses_before_a_job(key: str, value: object, word: str, place: Path) -> None:
    (place / "own.yaml").write_text(STUDY)
    with pytest.raises(UserError, match=word) as caught:
        Study("own.yaml", output="out", options={key: value}).run()
    assert "\n" not in str(caught.value)
    assert not list(place.glob("out/jobs"))
