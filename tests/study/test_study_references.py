"""References: scikit-learn's projections, and a study whose test scores those of the same features computed apart."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from scipy.linalg import inv, sqrtm
from sklearn.covariance import ledoit_wolf
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch.nn.functional import normalize
from toy_study import run_study

from levelfield.analysis.results import collect_rows
from levelfield.analysis.shown_names import shown_names
from levelfield.analysis.verify import verify_study
from levelfield.core.ledger import EVALUATED, read_lines
from levelfield.data.subset import ClassSubset
from levelfield.metrics import retrieval_metrics
from levelfield.report.page import write_report
from levelfield.report.table import study_table
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import Job, job_config
from levelfield.study.projection import linear_discriminants
from levelfield.study.rows import load_spec
from levelfield.training.build import build
from levelfield.training.embed import embed

ROWS = ["pretrained", *(f"pretrained[{name}]" for name in ("features", "pca32", "lda", "whitening", "whitening8"))]


def test_discriminants_are_scikit_learns_of_centred_features() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(8).repeat_interleave(5)
    features = torch.randn(40, 12, generator=generator) + 2 * torch.randn(8, 12, generator=generator)[labels]
    found = linear_discriminants(features, labels, most=128)(features)
    assert found.shape == (40, 7)
    lda = LinearDiscriminantAnalysis(solver="eigen", shrinkage="auto").fit(features.double().numpy(), labels.numpy())
    expected = lda.transform((features.double() - features.double().mean(0)).numpy())
    cosines = normalize(torch.from_numpy(expected)) @ normalize(torch.from_numpy(expected)).T
    np.testing.assert_allclose(found @ found.T, cosines, atol=1e-5)
    assert linear_discriminants(features, labels, most=3)(features).shape == (40, 3)


@pytest.fixture(scope="module")
def studied(toy_file: Path, tmp_path_factory: pytest.TempPathFactory) -> StudyFolder:
    folder = tmp_path_factory.mktemp("references")
    file = folder / "study.yaml"
    asked = "runs: 1\nsearch: {trials: 0}\nmethods: {arcface: null}\n"
    asked += "references: [features, pca32, lda, whitening, whitening8]\n"
    file.write_text(f"extends: {toy_file}\n{asked}")
    run_study(folder / "out", load_spec(file, {"trainer.max_epochs": 1}), console=Console(file=io.StringIO()))
    return StudyFolder.begun(folder / "out")


def test_each_reference_is_a_row_that_is_tested_once(studied: StudyFolder) -> None:
    assert studied.spec.rows == [*ROWS, "contrastive"]
    assert [row.method for row in collect_rows(studied) if row.stage == "test"].count("pretrained[lda]") == 3 * 3
    text, names = repr(study_table(studied)), shown_names(studied.spec)
    assert all(names[row] in text for row in ROWS)
    page = write_report(studied).read_text()
    assert all(f'title="{row}">{names[row]} <code>{row}</code></th>' in page for row in ROWS), "each is explained"
    assert len([line for line in read_lines(studied.ledger_file) if line["event"] == EVALUATED]) == 1
    assert verify_study(studied) == []


@pytest.mark.usefixtures("quiet")
def test_untouched_features_score_what_they_score_apart(studied: StudyFolder, tmp_path: Path) -> None:
    for fold in range(2):
        training = build(job_config(studied.spec, Job("contrastive", "run", 0, fold), {}), tmp_path, progress=False)
        training.datamodule.setup("test")
        test = embed(training.model.trunk, training.datamodule.test_dataloader())
        expected = retrieval_metrics(normalize(test.embeddings), test.labels, metrics=("map_at_r",))
        found = [
            row.value
            for row in collect_rows(studied)
            if (row.method, row.stage, row.fold, row.metric) == ("pretrained[features]", "test", fold, "map_at_r")
        ]
        assert found == [pytest.approx(expected["map_at_r"], abs=1e-6)]


@pytest.mark.usefixtures("quiet")
def test_a_whitening_scores_what_it_scores_apart(studied: StudyFolder, tmp_path: Path) -> None:
    """SciPy's inverse root of scikit-learn's shrunk covariance, at the features' full length."""
    config = job_config(studied.spec, Job("contrastive", "run", 0, 1), {})
    data = (training := build(config, tmp_path, progress=False)).datamodule
    data.setup("fit")
    train, val = (
        embed(training.model.trunk, data.eval_dataloader(subset))
        for subset in (
            ClassSubset(data.train_subset.dataset, data.train_subset.index, data.transform()),
            data.val_subset,
        )
    )
    points, labels = train.embeddings.double().numpy(), train.labels.numpy()
    means = np.array([points[labels == label].mean(0) for label in range(labels.max() + 1)])
    whitening = inv(sqrtm(ledoit_wolf(points - means[labels], assume_centered=True)[0]))
    whitened = (val.embeddings.double().numpy() - points.mean(0)) @ whitening
    directions = np.linalg.svd((points - points.mean(0)) @ whitening, full_matrices=False)[2]
    for kind, embeddings in (("whitening", whitened), ("whitening8", whitened @ directions[:8].T)):
        of_all = normalize(torch.from_numpy(embeddings).float())
        expected = retrieval_metrics(of_all, val.labels, metrics=("map_at_r",))
        found = studied.state.results[Job(f"pretrained[{kind}]", "run", 0, 1)]["validation"]
        assert found["map_at_r"] == pytest.approx(expected["map_at_r"], abs=1e-5)


def test_references_leave_the_identity_of_methods_and_baseline(toy_file: Path, tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(f"extends: {toy_file}\nreferences: lda\n")
    plain, with_lda = load_spec(toy_file), load_spec(file)
    untrained, lda = with_lda.row_hashes["pretrained"], with_lda.row_hashes["pretrained[lda]"]
    assert plain.row_hashes["pretrained"] == untrained != lda
    assert plain.row_hashes["arcface"] == with_lda.row_hashes["arcface"]
    assert plain.configuration_hash() != with_lda.configuration_hash()
