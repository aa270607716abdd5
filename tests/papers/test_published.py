"""The papers' numbers beside a study's: which row goes with which method, and which differences are named."""

import io
from pathlib import Path

import pytest
from begun_study import begun
from rich.console import Console
from tiny_fit import REPOSITORY

from levelfield.analysis.results import SummaryRow
from levelfield.study.folder import StudyFolder
from levelfield.study.spec import StudySpec, is_one_pca
from papers.beside import Counterpart, differences_of, papers_beside, print_beside
from papers.published import papers, published, searches

PAPERS = REPOSITORY / "papers"
STUDY = """
name: birds
base: [data/cub200.yaml, protocol/reality_check.yaml]
methods:
  first: ArcFaceLoss
  second: method/margin_per_class.yaml
  third: method/multi_similarity_miner.yaml
  mine: {model: {loss: {class_path: my_loss.ArcFaceLoss}}}
spaces: {mine: {}}
search: {trials: 50}
runs: 10
"""
FRESH_RUNS = "the selected trial is one of the ten runs there; here every run is a fresh one"


def beside(folder: Path, spec: StudySpec, paper: str = "reality_check") -> list[Counterpart]:
    return papers_beside(StudyFolder(folder, spec))[papers()[paper]["title"]]


def test_numbers_are_the_papers() -> None:
    """Tables 4 and 6 of Musgrave et al., 6 of Zhai and Wu, 2 of Fehervari et al., 4 of Vasilev and D'yakonov."""
    softmax = ("cub200", "NormalizedSoftmaxLoss", "zhai_wu")
    for dataset, loss, paper, settings, metric, percent in (
        ("cub200", "ArcFaceLoss", "reality_check", {"data.batch_size": 32}, "map_at_r", "21.5 ± 0.2"),
        ("sop", "SignalToNoiseRatioContrastiveLoss", "reality_check", {}, "map_at_r", "40.3 ± 0.1"),
        (*softmax, {"model.embedding_size": 1024}, "precision_at_1", "62.2"),
        (*softmax, {"model.distance": "hamming"}, "precision_at_1", "63.3"),
        ("cub200", "ProxyNCALoss", "fehervari", {"model.trunk": "resnet50"}, "nmi_geometric", "64.1"),
        ("cub200", "CircleLoss", "vasilev_dyakonov", {}, "map_at_r", "44.8"),
    ):
        (row,) = [
            row
            for row in published(dataset, loss)
            if (row.paper, row.embedding) == (paper, "separated") and settings.items() <= row.protocol.items()
        ]
        assert row.percent(metric) == percent


@pytest.mark.parametrize(
    ("paper", "study"),
    [
        *(("reality_check", name) for name in ("table4_cub", "table8", "table5_cars", "table6_sop")),
        *(("reality_check_trunks", name) for name in ("table1_cub", "table2_sop")),
        *(("zhai_wu", name) for name in ("table1_sop", "table4", "table5_inshop", "table6_cub")),
        *(("fehervari", name) for name in ("table2_resnet50", "table2_bn_inception")),
        *(("vasilev_dyakonov", name) for name in ("cub200", "news20")),
    ],
)
def test_the_papers_own_studies_differ_only_in_what_no_key_holds(paper: str, study: str, tmp_path: Path) -> None:
    study = f"{paper.removesuffix('_trunks')}/{study}"
    spec = begun(tmp_path, PAPERS / f"{study}.yaml")
    found = beside(tmp_path, spec, paper)
    theirs = papers()[paper]["protocol"].get("folds", spec.folds)
    folds = [] if spec.folds == theirs else [f"folds {spec.folds} here, {theirs} there"]
    assert differences_of(found) == [*folds, *papers()[paper].get("remarks", [])]
    matched = {row.method for row in found}
    unmatched = [] if "reality_check" in paper else ["pretrained"]
    assert [row for row in spec.rows if row not in matched and not is_one_pca(row)] == unmatched


def test_your_own_study_differs_by_key_and_by_method(tmp_path: Path) -> None:
    (tmp_path / "birds.yaml").write_text(STUDY)
    found = beside(tmp_path / "same", begun(tmp_path / "same", tmp_path / "birds.yaml"))
    assert differences_of(found) == [FRESH_RUNS]
    names = {row.method: row.result.method for row in found}
    assert names == {"pretrained": "Pretrained", "first": "ArcFace", "second": "Margin/class", "third": "MS+Miner"}
    (tmp_path / "birds.yaml").write_text(STUDY.replace("trials: 50", "trials: 6").replace("runs: 10", "runs: 3"))
    trunk = {"class_path": "levelfield.models.TimmTrunk", "init_args": {"name": "resnet50", "weights": None}}
    changes = {"model__trunk": trunk, "data__samples_per_class": 2, "trainer__callbacks": None}
    found = beside(tmp_path / "other", begun(tmp_path / "other", tmp_path / "birds.yaml", **changes))
    assert set(differences_of(found)) == {
        "model.trunk resnet50 here, bn_inception there",
        "trunk begins at random weights here, at ImageNet's there",
        "second, third: data.samples_per_class 2 here, 4 there",
        "first: data.samples_per_class 2 here, 1 there",
        "stopping after 1000 epochs of 100 steps here, early stopping there",
        "search.trials 6 here, 50 there",
        "runs 3 here, 10 there",
        FRESH_RUNS,
    }


def test_the_terminal_shows_ours_above_theirs_in_every_metric_of_both(tmp_path: Path) -> None:
    """Table 3 of Fehervari et al., margin loss: R@2 79.84, R@4 87.02, R@8 92.18, R@16 95.51, NMI 61.32."""
    spec = begun(tmp_path, PAPERS / "fehervari/table3.yaml")
    output, ours = io.StringIO(), [SummaryRow("margin", "separated", "recall_at_2", 0.2, 0.01, 10)]
    print_beside(Console(file=output, width=90), StudyFolder(tmp_path, spec), ours)
    lines = [line.split() for line in output.getvalue().splitlines()]
    assert ["margin", "20.0", "±", "1.0", "-", "-", "-"] in lines
    rows = [line[-4:] for line in lines if line[:2] == ["Margin", "Loss"]]
    assert rows[1:] == [["79.8", "87.0", "92.2", "95.5"], rows[2]]
    assert rows[2][-1] == "61.3"


def test_the_published_optima_are_the_papers() -> None:
    """Supplementary tables of Musgrave et al. 2020."""
    found = {(each["loss"], each["dataset"], each["batch_size"]): each["optimum"] for each in searches()}
    assert len(found) == 56
    assert found["ntxent", "sop", 32]["temperature"] == pytest.approx(0.0002, abs=1e-4)
    assert found["ntxent", "cub200", 256]["temperature"] == pytest.approx(0.0415, abs=1e-4)
    assert found["contrastive", "cub200", 32]["pos_margin"] == pytest.approx(-0.2)
    assert [found["fast_ap", name, 32]["num_bins"] for name in ("cub200", "cars196", "sop")] == [17, 27, 16]
