"""The pretrained baseline's two concatenated embeddings, by scikit-learn's PCA and a loop over queries."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from sklearn.decomposition import PCA

from levelfield.analysis.comparison import OVER_BASELINE, compare_all
from levelfield.analysis.results import collect_rows
from levelfield.data.subset import ClassSubset
from levelfield.report.page import write_report
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import Job, job_config
from levelfield.study.rows import load_spec
from levelfield.training.build import build

FOLDS, SIZE = 2, 16


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def map_at_r(gram: np.ndarray, labels: np.ndarray) -> float:
    found = []
    for query, row in enumerate(gram):
        others = [k for k in np.argsort(-row) if k != query]
        hits = labels[others[: (labels == labels[query]).sum() - 1]] == labels[query]
        found.append(np.mean(hits * np.cumsum(hits) / np.arange(1, len(hits) + 1)))
    return float(np.mean(found))


@torch.no_grad()
def features(training, subset: ClassSubset) -> np.ndarray:
    """Of each sample in evaluation; in double precision."""
    plain = ClassSubset(subset.dataset, subset.index, training.datamodule.transform())
    trunk = training.model.trunk.eval().double()
    return torch.cat([trunk(plain[k][0][None].double()) for k in range(len(plain))]).numpy()


@pytest.fixture(scope="module")
def expected(toy_file: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cosines of the test samples by one PCA and by the folds' side by side, and their labels."""
    spec, by_fold = load_spec(toy_file), []
    for fold in range(FOLDS):
        job = Job("pretrained", "run", 0, fold)
        training = build(job_config(spec, job, {}), tmp_path_factory.mktemp("fold"), progress=False)
        data = training.datamodule
        data.setup("fit")
        data.setup("test")
        train, val, test = (features(training, part) for part in (data.train_subset, data.val_subset, data.test_subset))
        by_fold.append(unit(PCA(SIZE).fit(train).transform(test)))
    whole = unit(PCA(FOLDS * SIZE).fit(np.concatenate([train, val])).transform(test))
    return whole @ whole.T, sum(fold @ fold.T for fold in by_fold) / FOLDS, data.test_subset.labels


def test_one_pca_of_the_whole_training_half_stands_beside_the_folds_side_by_side(
    finished: Path, toy_file: Path, expected: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> None:
    one, side_by_side, labels = expected
    stored = safetensors.numpy.load_file(finished / "jobs/pretrained/run0/fold0/tested.safetensors")
    assert stored["one_pca"].shape == (len(labels), FOLDS * SIZE)
    np.testing.assert_allclose(stored["one_pca"] @ stored["one_pca"].T, one, atol=1e-4)
    scores = json.loads((finished / "jobs/pretrained/run0/test/result.json").read_text())
    assert scores["one_pca"]["map_at_r"] == pytest.approx(map_at_r(one, labels), abs=1e-3)
    assert scores["concatenated"]["map_at_r"] == pytest.approx(map_at_r(side_by_side, labels), abs=1e-3)
    with (finished / "summary.csv").open() as file:
        means = {
            row["method"]: float(row["mean"])
            for row in csv.DictReader(file)
            if (row["embedding"], row["metric"]) == ("concatenated", "map_at_r")
        }
    assert means["pretrained"] == scores["concatenated"]["map_at_r"]
    assert means["pretrained_one_pca"] == scores["one_pca"]["map_at_r"]


def test_the_table_shows_both_and_methods_are_compared_with_the_papers(copy: Path, toy_file: Path) -> None:
    record = StudyFolder(copy, load_spec(toy_file))
    page = write_report(record).read_text()
    separated, _, concatenated = page.partition(">concatenated</th>")
    assert "pretrained_one_pca" not in separated
    assert (
        concatenated.index(">pretrained<") < concatenated.index(">pretrained_one_pca<") < concatenated.index("arcface")
    )
    for embedding, baseline in (("separated", "pretrained"), ("concatenated", "pretrained_one_pca")):
        found = compare_all(collect_rows(record), list(record.spec.methods), embedding=embedding)
        assert {c.other for c in found if c.kind == OVER_BASELINE} == {baseline}
