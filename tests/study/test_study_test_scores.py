"""Test scores beyond the three of every study, as some papers report them."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.metrics import normalized_mutual_info_score
from torch.nn.functional import normalize

from levelfield.cli.study import parse
from levelfield.errors import UserError
from levelfield.study.folder import StudyFolder
from levelfield.study.rows import load_spec, with_options
from levelfield.study.test_scores import EmbeddedTest, concatenate, score_folds
from levelfield.training.embed import EmbeddedSet


def fold(seed: int) -> EmbeddedTest:
    """Six tight classes of five."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(6).repeat_interleave(5)
    centres = torch.randn(6, 8, generator=draw)
    embeddings = normalize(centres[labels] + 0.7 * torch.randn(30, 8, generator=draw))
    return EmbeddedTest(EmbeddedSet(embeddings, labels, torch.arange(30)), None, "")


def test_a_study_can_ask_for_the_papers_scores(toy_file: Path) -> None:
    wanted = ["recall_at_4", "recall_at_2", "map", "mrr", "nmi_geometric", "map_at_3"]
    spec = replace(load_spec(toy_file), metrics=wanted)
    folds = [fold(0), fold(1)]
    scores = score_folds(folds, "cosine", spec.metrics)
    assert list(scores["separated"][0]) == ["map_at_r", "r_precision", "precision_at_1", *wanted]
    for found, each in zip(scores["separated"], folds, strict=True):
        embeddings, labels = each.samples.embeddings, each.samples.labels
        order = (embeddings @ embeddings.T).fill_diagonal_(-2).argsort(descending=True)[:, :-1]
        same = labels[order] == labels[:, None]
        assert found["recall_at_2"] == pytest.approx(same[:, :2].any(1).float().mean().item())
        assert found["recall_at_4"] == pytest.approx(same[:, :4].any(1).float().mean().item())
        assert found["mrr"] == pytest.approx((1 / (same.float().argmax(1) + 1)).mean().item())
        precision = same.cumsum(1) / torch.arange(1, 30)
        assert found["map"] == pytest.approx((precision * same).sum(1).div(4).mean().item())
        at_3 = (precision * same)[:, :3].sum(1).div(3).mean().item()
        assert found["map_at_3"] == pytest.approx(at_3)
        clusters = KMeans(6, n_init=10, random_state=0).fit_predict(embeddings.numpy())
        expected = normalized_mutual_info_score(labels.numpy(), clusters, average_method="geometric")
        assert found["nmi_geometric"] == pytest.approx(expected, abs=0.1), "k-means from other starts"


def test_each_fold_weighs_the_same_in_the_concatenation() -> None:
    folds = [torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 0.5]])]
    torch.testing.assert_close(concatenate(folds), torch.tensor([[0.6, 0.8, 0.0, 1.0]]) / 2**0.5)


def test_further_scores_touch_the_test_alone(toy_file: Path) -> None:
    spec = load_spec(toy_file)
    more = replace(spec, metrics=["mrr"])
    assert more.row_hashes["arcface"] == spec.row_hashes["arcface"], "no training is done again"
    folders = [StudyFolder(toy_file.parent / "none", each) for each in (more, spec)]
    assert folders[0].test_hash("arcface") != folders[1].test_hash("arcface")
    assert more.configuration_hash() != spec.configuration_hash(), "the test classes are evaluated for another question"


def test_metrics_stand_in_the_study_or_its_base_or_are_given(toy_file: Path, tmp_path: Path) -> None:
    protocol, path = tmp_path / "protocol.yaml", tmp_path / "study.yaml"
    protocol.write_text("metrics: [nmi, mrr]\n")
    text = toy_file.read_text().replace("base:\n", f"base:\n  - {protocol}\n", 1)
    path.write_text(text)
    spec = load_spec(path)
    assert spec.metrics == ["nmi", "mrr"]
    assert all("metrics" not in config for config in spec.methods.values())
    words = ["run", "toy.yaml", "--metrics", "recall_at_16", "map_at_1024", "nmi", "--runs", "3"]
    given = ["recall_at_16", "map_at_1024", "nmi"]
    assert load_spec(path, parse(words).overrides).metrics == given
    assert with_options(spec, parse(words).overrides).metrics == given, "a folder's, to be compared with what is asked"
    path.write_text(text + "metrics: mrr\n")
    assert load_spec(path).metrics == ["mrr"]
    path.write_text(text.replace("arcface: {", "arcface: {metrics: [nmi], "))
    with pytest.raises(UserError, match=r"arcface .*'metrics'"):
        load_spec(path)
