"""Rows made of a trained row: averaged with the start, or through a PCA; further trunks; some blocks of many."""

import json
from pathlib import Path

import pytest
import torch
from study_engine import TABLES, run_file
from toy_study import TOY

from levelfield.analysis.verify import verify_study
from levelfield.errors import UserError
from levelfield.metrics import retrieval_metrics
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import Job
from levelfield.study.rows import load_spec
from levelfield.training.build import build
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
references: [features]
trunks:
  wide: {{model: {{trunk: {{class_path: levelfield.models.TimmTrunk, init_args: {{name: resnet10t, weights: null}}}}}}}}
folds: 2
blocks: 4
runs: 1
threads: 1
"""


@pytest.fixture(scope="module")
def ladder(tmp_path_factory: pytest.TempPathFactory) -> StudyFolder:
    folder = tmp_path_factory.mktemp("ladder")
    (folder / "ladder.yaml").write_text(LADDER)
    return run_file(folder / "ladder.yaml", folder / "out")


def learnt(study: StudyFolder, row: str, fold: int = 0) -> MetricLearner:
    return MetricLearner.load_from_checkpoint(study.checkpoint(Job(row, "run", 0, fold)))


def result(study: StudyFolder, row: str, fold: int = 0) -> dict:
    return json.loads((study.folder / Job(row, "run", 0, fold).path / "result.json").read_text())


def test_the_first_blocks_are_validated_and_all_others_train(ladder: StudyFolder) -> None:
    """32 classes: 16 of them in 4 blocks of 4, so 12 train."""
    rows = ["pretrained", "pretrained[features]", "pretrained[features-wide]"]
    assert ladder.spec.rows == [*rows, "head", "trunk", "averaged", "half", "small"]
    for fold in (0, 1):
        data = torch.load(ladder.checkpoint(Job("head", "run", 0, fold)), weights_only=True)["levelfield"]["data"]
        assert (len(data["train_classes"]), len(data["val_classes"])) == (12, 4)
    assert verify_study(ladder) == []
    written = [table.read_text() for table in (ladder.results_file, ladder.summary_file)]
    assert all(all(f"\n{row}," in text for row in ladder.spec.rows) for text in written)


def test_a_mean_of_the_weights_before_and_after(ladder: StudyFolder, tmp_path: Path) -> None:
    config = ladder.test_config("trunk")
    start = build(config, tmp_path, progress=False).model.trunk.state_dict()
    trained, half = learnt(ladder, "trunk").trunk.state_dict(), learnt(ladder, "half").trunk.state_dict()
    moved = 0
    for name, weight in half.items():
        if weight.is_floating_point():
            expected = 0.5 * start[name].double() + 0.5 * trained[name].double()
            torch.testing.assert_close(weight.double(), expected, atol=1e-6, rtol=1e-6)
            moved += int((start[name] != trained[name]).any())
    assert moved > 10


def test_validation_chooses_alpha(ladder: StudyFolder, tmp_path: Path) -> None:
    """Each alpha scored by another way: the whole model by hand, on the validation images."""
    for fold in (0, 1):
        config = ladder.test_config("trunk")
        config["data"] |= {"fold": fold}
        training = build(config, tmp_path, progress=False)
        training.datamodule.setup("validate")
        trained = learnt(ladder, "trunk", fold).trunk.state_dict()
        start = {name: weight.clone() for name, weight in training.model.trunk.state_dict().items()}
        scores = {}
        for alpha in (0.25, 0.5, 0.75, 1.0):
            mixed = {
                name: alpha * trained[name] + (1 - alpha) * start[name] if start[name].is_floating_point() else weight
                for name, weight in trained.items()
            }
            training.model.trunk.load_state_dict(mixed)
            trunk = training.model.trunk.eval()
            with torch.no_grad():
                parts = [(trunk(batch[0]), batch[1]) for batch in training.datamodule.val_dataloader()]
            embeddings, labels = (torch.cat(part) for part in zip(*parts, strict=True))
            scores[alpha] = retrieval_metrics(embeddings, labels)["map_at_r"]
        found = result(ladder, "averaged", fold)
        assert found["validation"]["map_at_r"] == pytest.approx(max(scores.values()), abs=1e-6)
        assert scores[found["alpha"]] == pytest.approx(max(scores.values()), abs=1e-6)


def test_a_pca_of_the_trained_trunk(ladder: StudyFolder, tmp_path: Path) -> None:
    """Principal components from numpy's decomposition, up to the sign."""
    small = learnt(ladder, "small")
    training = build(ladder.test_config("trunk"), tmp_path, progress=False)
    training.datamodule.setup("fit")
    trunk = learnt(ladder, "trunk").trunk.eval()
    with torch.no_grad():
        features = torch.cat([trunk(batch[0]) for batch in training.datamodule.train_samples()]).double()
    _, _, directions = torch.linalg.svd(features - features.mean(0), full_matrices=False)
    cosines = (small.embedder.linear.weight.detach().double() @ directions[:8].T).abs()
    torch.testing.assert_close(cosines[:3, :3], torch.eye(3, dtype=torch.float64), atol=1e-3, rtol=0)
    assert small.embedding_size == 8


def test_computed_again_with_its_source_and_alone_the_same_bytes(ladder: StudyFolder, tmp_path: Path) -> None:
    (tmp_path / "ladder.yaml").write_text(LADDER)
    study = StudyFolder(tmp_path / "out", load_spec(tmp_path / "ladder.yaml"))
    again = run_file(tmp_path / "ladder.yaml", tmp_path / "out")
    for name in TABLES:
        assert (study.folder / name).read_bytes() == (ladder.folder / name).read_bytes()
    again.remove_row("trunk")
    assert not any(again.has_results(row) for row in ("trunk", "averaged", "half", "small"))
    assert again.has_results("head")


@pytest.mark.parametrize(
    ("derived", "key"),
    [
        ("{mean: {of: trnk, alpha: 0.5}}", "did you mean 'trunk'"),
        ("{mean: {of: trunk}}", r"derived\.mean"),
        ("{mean: {of: trunk, alpha: 2}}", "alpha"),
        ("{mean: {of: trunk, pca: 0}}", "pca"),
        ("{head: {of: trunk, pca: 8}}", r"derived\.head"),
        ("{mean: {of: trunk, alfa: 1}}", "'alfa'"),
    ],
)
def test_what_cannot_be_derived(derived: str, key: str, tmp_path: Path) -> None:
    text = LADDER[: LADDER.index("derived:")] + f"derived: {derived}\n" + LADDER[LADDER.index("references:") :]
    (tmp_path / "ladder.yaml").write_text(text)
    with pytest.raises(UserError, match=key):
        load_spec(tmp_path / "ladder.yaml")


def test_two_heads_have_no_mean(tmp_path: Path) -> None:
    text = LADDER.replace("{of: trunk, alpha: 0.5}", "{of: head, alpha: 0.5}")
    (tmp_path / "ladder.yaml").write_text(text)
    with pytest.raises(UserError, match="IdentityEmbedder"):
        run_file(tmp_path / "ladder.yaml", tmp_path / "out")
