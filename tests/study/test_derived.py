"""Derived rows and references: averages, PCA, whitening, discriminants, against the same computed apart."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.linalg import inv, sqrtm
from sklearn.covariance import ledoit_wolf
from study_engine import evaluations, run_file, tables
from torch.nn.functional import normalize
from toy_study import TOY

from levelfield.analysis.results import collect_rows
from levelfield.analysis.shown_names import shown_names
from levelfield.analysis.verify import verify_study
from levelfield.core.errors import UserError
from levelfield.metrics import retrieval_metrics
from levelfield.report.page import write_report
from levelfield.report.table import study_table
from levelfield.study.derived import derive
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import Job, Task, job_config
from levelfield.training.build import Training
from levelfield.training.embed import embed
from levelfield.training.learner import MetricLearner

LADDER = f"""
name: ladder
{TOY[TOY.index("base:") : TOY.index("methods:")].replace("embedding_size: 16", "embedding_size: 8")}
methods:
  head: {{model: {{loss: ContrastiveLoss, freeze_trunk: true}}}}
  trunk:
    model: {{loss: ContrastiveLoss, embedder: levelfield.models.IdentityEmbedder, embedding_size: 96, trunk_lr: 0.01}}
derived:
  averaged: {{of: trunk, alpha: validated}}
  half: {{of: trunk, alpha: 0.5}}
  small: {{of: trunk, pca: 8}}
references: [features, pca32, lda, whitening, whitening8]
trunks:
  wide: {{model: {{trunk: {{class_path: levelfield.models.TimmTrunk, init_args: {{name: resnet10t, weights: null}}}}}}}}
folds: 2
blocks: 4
runs: 1
threads: 1
"""


@pytest.fixture(scope="module")
def ladder(shared: Callable[[str, Callable[[Path], None]], Path]) -> StudyFolder:
    def make(folder: Path) -> None:
        folder.mkdir()
        (folder / "ladder.yaml").write_text(LADDER)
        run_file(folder / "ladder.yaml", folder / "out")

    return StudyFolder.begun(shared("ladder", make) / "out")


def learnt(study: StudyFolder, row: str, fold: int = 0) -> MetricLearner:
    return MetricLearner.load_from_checkpoint(study.checkpoint(Job(row, "run", 0, fold)))


ROWS = ["pretrained", *(f"pretrained[{name}]" for name in ("features", "pca32", "lda", "whitening", "whitening8"))]


def test_the_first_blocks_are_validated_and_all_others_train(ladder: StudyFolder) -> None:
    """32 classes: 16 of them in 4 blocks of 4, so 12 train."""
    trained = ["head", "trunk", "averaged", "half", "small"]
    assert ladder.spec.rows == [*ROWS, "pretrained[features-wide]", "pretrained_one_pca", *trained]
    for fold in (0, 1):
        data = ladder.state.results[Job("head", "run", 0, fold)]["data"]
        assert (len(data["train_classes"]), len(data["val_classes"])) == (12, 4)
    for table in (ladder.results_file, ladder.summary_file):
        assert all(f"\n{row}," in table.read_text() for row in ladder.spec.rows)


def test_each_reference_is_a_row_that_is_tested_once(ladder: StudyFolder) -> None:
    assert [row.method for row in collect_rows(ladder) if row.stage == "test"].count("pretrained[lda]") == 3 * 3
    text, page, names = repr(study_table(ladder)), write_report(ladder).read_text(), shown_names(ladder.spec)
    assert all(names[row] in text for row in ROWS)
    assert all(f'title="{row}">{names[row]} <code>{row}</code></th>' in page for row in ROWS), "each is explained"
    assert evaluations(ladder.folder) == 1
    assert verify_study(ladder) == []


def test_a_mean_of_two_heads_is_refused(ladder: StudyFolder, tmp_path: Path) -> None:
    spec = replace(ladder.spec, derived={"half": {"of": "head", "alpha": 0.5}})
    task = Task(spec, ladder.folder, Job("half", "run", 0, 0), {}, {}, "", None)
    with pytest.raises(UserError, match="IdentityEmbedder"):
        derive(task, Training(ladder.test_config("head"), tmp_path).build())


def test_an_average_is_a_mean_of_the_weights_and_validation_chooses_alpha(ladder: StudyFolder, tmp_path: Path) -> None:
    """Each alpha scored by another way: the whole model by hand, on the validation images."""
    for fold in (0, 1):
        config = ladder.test_config("trunk")
        config["data"] |= {"fold": fold}
        training = Training(config, tmp_path).build()
        training.datamodule.setup("validate")
        trained = learnt(ladder, "trunk", fold).trunk.state_dict()
        start = {name: weight.clone() for name, weight in training.model.trunk.state_dict().items()}
        assert sum(int((start[name] != trained[name]).any()) for name in start) > 10
        scores = {}
        for alpha in (0.25, 0.5, 0.75, 1.0):
            mixed = {name: (alpha * trained[name] + (1 - alpha) * start[name]).to(start[name]) for name in trained}
            if alpha == 0.5:
                torch.testing.assert_close(learnt(ladder, "half", fold).trunk.state_dict(), mixed, atol=1e-6, rtol=1e-6)
            training.model.trunk.load_state_dict(mixed)
            val = embed(training.model.trunk, training.datamodule.val_dataloader())
            scores[alpha] = retrieval_metrics(val.embeddings, val.labels)["map_at_r"]
        found = ladder.state.results[Job("averaged", "run", 0, fold)]
        same = pytest.approx([max(scores.values())] * 2, abs=1e-6)
        assert [found["validation"]["map_at_r"], scores[found["alpha"]]] == same


def test_a_pca_of_the_trained_trunk(ladder: StudyFolder, tmp_path: Path) -> None:
    """Principal components from numpy's decomposition, up to the sign."""
    small = learnt(ladder, "small")
    training = Training(ladder.test_config("trunk"), tmp_path).build()
    training.datamodule.setup("fit")
    features = embed(learnt(ladder, "trunk").trunk, training.datamodule.train_samples()).embeddings.double()
    _, _, directions = torch.linalg.svd(features - features.mean(0), full_matrices=False)
    cosines = (small.embedder.linear.weight.detach().double() @ directions[:8].T).abs()
    torch.testing.assert_close(cosines[:3, :3], torch.eye(3, dtype=torch.float64), atol=1e-3, rtol=0)
    assert small.embedding_size == 8


@pytest.mark.slow
def test_computed_again_with_its_source_and_alone_the_same_bytes(ladder: StudyFolder, tmp_path: Path) -> None:
    (tmp_path / "ladder.yaml").write_text(LADDER)
    again = StudyFolder.begun(Path(shutil.copytree(ladder.folder, tmp_path / "out")))
    again.remove_row("trunk")
    assert not any(again.has_results(row) for row in ("trunk", "averaged", "half", "small"))
    assert again.has_results("head")
    run_file(tmp_path / "ladder.yaml", tmp_path / "out", reopen_test="once more")
    assert tables(tmp_path / "out") == tables(ladder.folder)


@pytest.mark.usefixtures("quiet")
def test_features_and_their_whitening_score_what_they_score_apart(ladder: StudyFolder, tmp_path: Path) -> None:
    """SciPy's inverse root of scikit-learn's shrunk covariance, at the features' full length."""
    config = job_config(ladder.spec, Job("head", "run", 0, 1), {})
    data = (training := Training(config, tmp_path).build()).datamodule
    data.setup("fit")
    loaders = data.train_samples(), data.eval_dataloader(data.val_subset)
    train, val = (embed(training.model.trunk, loader) for loader in loaders)
    points, labels = train.embeddings.double().numpy(), train.labels.numpy()
    means = np.array([points[labels == label].mean(0) for label in range(labels.max() + 1)])
    whitening = inv(sqrtm(ledoit_wolf(points - means[labels], assume_centered=True)[0]))
    whitened = (val.embeddings.double().numpy() - points.mean(0)) @ whitening
    directions = np.linalg.svd((points - points.mean(0)) @ whitening, full_matrices=False)[2]
    by_kind = {"features": val.embeddings.numpy(), "whitening": whitened, "whitening8": whitened @ directions[:8].T}
    for kind, embeddings in by_kind.items():
        expected = retrieval_metrics(normalize(torch.from_numpy(embeddings).float()), val.labels)["map_at_r"]
        found = ladder.state.results[Job(f"pretrained[{kind}]", "run", 0, 1)]["validation"]
        assert found["map_at_r"] == pytest.approx(expected, abs=1e-5)
