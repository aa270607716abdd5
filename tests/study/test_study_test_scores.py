"""Test scores beyond the three of every study, the baseline's by scikit-learn, and a row that has collapsed."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.metrics import normalized_mutual_info_score
from torch.nn.functional import normalize
from typed import parse

from levelfield import Study
from levelfield.core.errors import UserError
from levelfield.data.loaders import ClassSubset
from levelfield.data.transforms import as_floats, stacked
from levelfield.metrics import RetrievalMetrics, retrieval_metrics
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import Job, job_config
from levelfield.study.rows import load_spec, with_options
from levelfield.study.test_scores import EmbeddedTest, class_sums, concatenate, score_folds
from levelfield.training.build import Training
from levelfield.training.embed import EmbeddedSet


def embedded(embeddings: torch.Tensor, labels: torch.Tensor) -> EmbeddedTest:
    return EmbeddedTest(EmbeddedSet(embeddings, labels, torch.arange(len(labels))), None, "")


def fold(seed: int) -> EmbeddedTest:
    """Six tight classes of five."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(6).repeat_interleave(5)
    centres = torch.randn(6, 8, generator=draw)
    return embedded(normalize(centres[labels] + 0.7 * torch.randn(30, 8, generator=draw)), labels)


def test_a_study_can_ask_for_the_papers_scores(toy_file: Path) -> None:
    wanted = ["recall_at_4", "recall_at_2", "map", "mrr", "nmi_geometric", "map_at_3"]
    plain = load_spec(toy_file)
    spec = replace(plain, metrics=wanted)
    assert spec.row_hashes["arcface"] == plain.row_hashes["arcface"], "no training is done again"
    of_test = {StudyFolder(toy_file.parent / "none", each).test_hash("arcface") for each in (plain, spec)}
    assert len(of_test) == 2, "the test classes are evaluated for another question"
    folds = [fold(0), fold(1)]
    scores = score_folds(folds, "cosine", spec.metrics)
    assert list(scores["separated"][0]) == ["map_at_r", "r_precision", "precision_at_1", *wanted]
    for found, (samples, *_) in zip(scores["separated"], folds, strict=True):
        asked = [name for name in found if name != "nmi_geometric"]
        expected = retrieval_metrics(samples.embeddings, samples.labels, metrics=asked)
        assert {name: found[name] for name in asked} == pytest.approx({name: expected[name] for name in asked})
        clusters = KMeans(6, n_init=10, random_state=0).fit_predict(samples.embeddings.numpy())
        geometric = normalized_mutual_info_score(samples.labels.numpy(), clusters, average_method="geometric")
        assert found["nmi_geometric"] == pytest.approx(geometric, abs=0.1), "k-means from other starts"


def test_each_fold_weighs_the_same_in_the_concatenation() -> None:
    folds = [torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 0.5]])]
    torch.testing.assert_close(concatenate(folds), torch.tensor([[0.6, 0.8, 0.0, 1.0]]) / 2**0.5)


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
    path.write_text(text.replace("arcface: {", "arcface: {metrics: [nmi], "))
    with pytest.raises(UserError, match=r"arcface: 'metrics'"):
        load_spec(path)


def test_scores_hold_the_effective_rank_of_each_fold() -> None:
    labels = torch.arange(24) % 6
    sets = (torch.eye(8).repeat(3, 1), torch.ones(24, 8), torch.zeros(24, 8))
    folds = [embedded(each, labels) for each in sets]
    assert score_folds(folds, "cosine", [])["effective_rank"] == [8.0, 1.0, 1.0]


@pytest.mark.parametrize(("ranks", "number"), [([1.49, 6.0], 1), ([1.5, 6.0], 0)])
def test_its_row_and_a_note_name_it(copy: Path, ranks: list[float], number: int) -> None:
    path = StudyFolder.begun(copy).test_file("contrastive", 0)
    path.write_text(json.dumps({**json.loads(path.read_text()), "effective_rank": ranks}))
    study = Study(copy)
    for text in (str(study.table()), re.sub("</?a[^>]*>", "", study.report().read_text())):
        assert ("Contrastive (collapsed)" in text) == (number > 0)
        assert "ArcFace (collapsed)" not in text
        assert bool(re.search(rf"contrastive collapsed: .*\b{number} of 4\b", text)) == (number > 0)


ROWS, FOLDS, SIZE = ["pretrained", "pretrained_one_pca"], 2, 16


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@torch.no_grad()
def features(training, subset: ClassSubset) -> np.ndarray:
    """Of each sample in evaluation; in double precision."""
    plain = ClassSubset(subset.dataset, subset.index, training.datamodule.transform())
    trunk = training.model.trunk.eval().double()
    squares = [plain[position][0] for position in range(len(plain))]
    return torch.cat([trunk(as_floats(stacked([square])).double()) for square in squares]).numpy()


def map_at_r(gram: np.ndarray, labels: np.ndarray) -> float:
    found = []
    for query, row in enumerate(gram):
        others = [k for k in np.argsort(-row) if k != query]
        hits = labels[others[: (labels == labels[query]).sum() - 1]] == labels[query]
        found.append(np.mean(hits * np.cumsum(hits) / np.arange(1, len(hits) + 1)))
    return float(np.mean(found))


def test_one_pca_of_the_whole_training_half_stands_beside_the_folds_side_by_side(finished, toy_file, tmp_path):
    """Each by scikit-learn, from features in double precision."""
    by_fold = []
    for number in range(FOLDS):
        config = job_config(load_spec(toy_file), Job("pretrained", "run", 0, number), {})
        training = Training(config, tmp_path / str(number)).build()
        data = training.datamodule
        data.setup("fit")
        data.setup("test")
        train, val, test = (features(training, part) for part in (data.train_subset, data.val_subset, data.test_subset))
        by_fold.append(unit(PCA(SIZE).fit(train).transform(test)))
    whole, labels = unit(PCA(FOLDS * SIZE).fit(np.concatenate([train, val])).transform(test)), data.test_subset.labels
    stored = safetensors.numpy.load_file(finished / "jobs/pretrained_one_pca/run0/fold0/tested.safetensors")
    np.testing.assert_allclose(stored["embeddings"] @ stored["embeddings"].T, whole @ whole.T, atol=1e-4)
    side_by_side = sum(fold @ fold.T for fold in by_fold) / FOLDS
    tested = [json.loads((finished / f"jobs/{row}/run0/test/result.json").read_text()) for row in ROWS]
    found = [tested[0]["concatenated"]["map_at_r"], tested[1]["separated"][0]["map_at_r"]]
    assert found == pytest.approx([map_at_r(side_by_side, labels), map_at_r(whole @ whole.T, labels)], abs=1e-3)
    summary = Study(finished).summary.query("embedding == 'concatenated' and metric == 'map_at_r'")
    assert [*summary.set_index("method").loc[ROWS, "mean"]] == found


def test_a_class_with_one_sample_has_no_sum() -> None:
    labels = torch.tensor([0, 0, 0, 1, 2, 2])
    embeddings = normalize(torch.randn(6, 4, generator=torch.Generator().manual_seed(0)))
    metric = RetrievalMetrics(metrics=("map_at_r",))
    metric.update(embeddings, labels, torch.arange(6))
    score = metric.compute()["map_at_r"]
    sums = class_sums(metric.query_scores["map_at_r"], metric.query_labels)
    assert [number for _, number in sums] == [3, 2]
    assert sum(total for total, _ in sums) / 5 == pytest.approx(score)
