"""Test scores, untrained and derived rows, against the same computed apart."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from refused import refuses
from scipy.linalg import inv, sqrtm
from sklearn.cluster import KMeans
from sklearn.covariance import ledoit_wolf
from sklearn.decomposition import PCA
from sklearn.metrics import normalized_mutual_info_score
from sklearn.preprocessing import normalize as unit
from study_engine import evaluations, run_file, tables
from torch.nn.functional import normalize
from toy_study import TOY
from typed import parse

from levelfield import Study
from levelfield.analysis.results import collect_rows
from levelfield.analysis.shown_names import shown_names
from levelfield.analysis.verify import verify_study
from levelfield.data.loaders import ClassSubset
from levelfield.data.transforms import as_floats, stacked
from levelfield.metrics import RetrievalMetrics, retrieval_metrics
from levelfield.report.page import write_report
from levelfield.report.table import study_table
from levelfield.study.derived import derive
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import Job, Task, job_config
from levelfield.study.rows import load_spec, with_options
from levelfield.study.test_scores import EmbeddedTest, class_sums, concatenate, score_folds
from levelfield.training.build import Training
from levelfield.training.embed import EmbeddedSet, embed
from levelfield.training.learner import MetricLearner


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
    refuses(r"arcface: 'metrics'", load_spec, path)


@pytest.mark.parametrize(("ranks", "number"), [([1.49, 6.0], 1), ([1.5, 6.0], 0)])
def test_the_effective_rank_tells_a_row_that_has_collapsed(copy: Path, ranks: list[float], number: int) -> None:
    sets = (torch.eye(8).repeat(3, 1), torch.ones(24, 8), torch.zeros(24, 8))
    folds = [embedded(each, torch.arange(24) % 6) for each in sets]
    assert score_folds(folds, "cosine", [])["effective_rank"] == [8.0, 1.0, 1.0]
    path = StudyFolder.begun(copy).test_file("contrastive", 0)
    path.write_text(json.dumps({**json.loads(path.read_text()), "effective_rank": ranks}))
    study = Study(copy)
    for text in (str(study.table()), re.sub("</?a[^>]*>", "", study.report().read_text())):
        assert ("Contrastive (collapsed)" in text) == (number > 0)
        assert "ArcFace (collapsed)" not in text
        assert bool(re.search(rf"contrastive collapsed: .*\b{number} of 4\b", text)) == (number > 0)


@torch.no_grad()
def features(training, subset: ClassSubset) -> np.ndarray:
    """Of each sample in evaluation; in double precision."""
    plain = ClassSubset(subset.dataset, subset.index, training.datamodule.transform())
    trunk = training.model.trunk.eval().double()
    return torch.cat([trunk(as_floats(stacked([plain[n][0]])).double()) for n in range(len(plain))]).numpy()


def map_at_r(gram: np.ndarray, labels: np.ndarray) -> float:
    found = []
    for query, row in enumerate(gram):
        others = [k for k in np.argsort(-row) if k != query]
        hits = labels[others[: (labels == labels[query]).sum() - 1]] == labels[query]
        found.append(np.mean(hits * np.cumsum(hits) / np.arange(1, len(hits) + 1)))
    return float(np.mean(found))


def test_one_pca_of_the_whole_training_half_stands_beside_the_folds_side_by_side(finished, toy_file, tmp_path):
    """Each by scikit-learn, from features in double precision."""
    by_fold, rows = [], ["pretrained", "pretrained_one_pca"]
    for number in range(2):
        config = job_config(load_spec(toy_file), Job("pretrained", "run", 0, number), {})
        training = Training(config, tmp_path / str(number)).build()
        data = training.datamodule
        data.setup("fit")
        data.setup("test")
        train, val, test = (features(training, part) for part in (data.train_subset, data.val_subset, data.test_subset))
        by_fold.append(unit(PCA(16).fit(train).transform(test)))
    whole, labels = unit(PCA(32).fit(np.concatenate([train, val])).transform(test)), data.test_subset.labels
    stored = safetensors.numpy.load_file(finished / "jobs/pretrained_one_pca/run0/fold0/tested.safetensors")
    np.testing.assert_allclose(stored["embeddings"] @ stored["embeddings"].T, whole @ whole.T, atol=1e-4)
    side_by_side = sum(fold @ fold.T for fold in by_fold) / 2
    tested = [json.loads((finished / f"jobs/{row}/run0/test/result.json").read_text()) for row in rows]
    found = [tested[0]["concatenated"]["map_at_r"], tested[1]["separated"][0]["map_at_r"]]
    assert found == pytest.approx([map_at_r(side_by_side, labels), map_at_r(whole @ whole.T, labels)], abs=1e-3)
    summary = Study(finished).summary.query("embedding == 'concatenated' and metric == 'map_at_r'")
    assert [*summary.set_index("method").loc[rows, "mean"]] == found


def test_a_class_with_one_sample_has_no_sum() -> None:
    labels = torch.tensor([0, 0, 0, 1, 2, 2])
    embeddings = normalize(torch.randn(6, 4, generator=torch.Generator().manual_seed(0)))
    metric = RetrievalMetrics(metrics=("map_at_r",))
    metric.update(embeddings, labels, torch.arange(6))
    score = metric.compute()["map_at_r"]
    sums = class_sums(metric.query_scores["map_at_r"], metric.query_labels)
    assert [number for _, number in sums] == [3, 2]
    assert sum(total for total, _ in sums) / 5 == pytest.approx(score)


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
    refuses("IdentityEmbedder", derive, task, Training(ladder.test_config("head"), tmp_path).build())


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
