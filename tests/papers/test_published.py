"""The papers' numbers beside a study's: which row goes with which method, and which differences are named."""

import io
import json
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml
from rich.console import Console
from tiny_fit import REPOSITORY

from levelfield.analysis.results import SummaryRow
from levelfield.core.configuration import set_dotted
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import Job
from levelfield.study.rows import load_spec
from levelfield.study.spec import StudySpec, is_one_pca
from papers.beside import PaperBeside, papers_beside, print_beside
from papers.published import papers, published, searches

PAPERS, CONFIGS = REPOSITORY / "papers", REPOSITORY / "configs"
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


def begun(folder: Path, study: str | Path = STUDY, **changes: object) -> StudySpec:
    """A study whose first runs have written their whole configuration; nothing is trained."""
    folder.mkdir(exist_ok=True)
    file = study if isinstance(study, Path) else folder / "birds.yaml"
    if isinstance(study, str):
        file.write_text(study)
    spec = load_spec(file)
    (folder / "study.yaml").write_text(spec.to_yaml())
    for method, config in spec.methods.items():
        config["model"].setdefault("distance", "cosine")  # defaults that a job's file has
        config["model"].setdefault("miner", None)
        config["data"].setdefault("sampler", "levelfield.data.MPerClassSampler")
        loss = config["model"].get("loss")
        if isinstance(loss, dict) and "weight_init" in loss.get("init_args", {}):
            loss["init_args"].setdefault("class_fraction", 1.0)
        for key, value in changes.items():
            config = set_dotted(config, key.replace("__", "."), value)
        job = Job(method, "run", 0, 0)
        (folder / job.path).mkdir(parents=True)
        (folder / job.path / "config.yaml").write_text(yaml.safe_dump(config))
        result = {**asdict(job), "configuration": spec.row_hashes[method], "parameters": {}, "seed": 0, "seconds": 1.0}
        (folder / job.path / "result.json").write_text(json.dumps(result))
    return spec


def beside(folder: Path, spec: StudySpec, paper: str = "reality_check") -> PaperBeside:
    title = papers()[paper]["title"]
    (found,) = [each for each in papers_beside(StudyFolder(folder, spec)) if each.title == title]
    return found


def test_numbers_are_the_papers() -> None:
    """Tables 4 and 6 of Musgrave et al., 6 of Zhai and Wu, 2 of Fehervari et al., 4 of Vasilev and D'yakonov."""
    softmax = ("cub200", "NormalizedSoftmaxLoss", "zhai_wu")
    for dataset, loss, paper, settings, metric, percent in (
        ("cub200", "ArcFaceLoss", "reality_check", {"data.batch_size": 32}, "map_at_r", "21.5 ± 0.2"),
        ("sop", "SignalToNoiseRatioContrastiveLoss", "reality_check", {}, "map_at_r", "40.3 ± 0.1"),
        (*softmax, {"model.embedding_size": 1024}, "precision_at_1", "62.2"),
        (*softmax, {"model.distance": "hamming"}, "precision_at_1", "63.3"),
        ("cub200", "MetaClassLoss", "fehervari", {"model.trunk": "resnet18"}, "nmi_geometric", "63.2"),
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
    assert found.differences == [*folds, *papers()[paper].get("remarks", [])]
    matched = {row.method for row in found.counterparts}
    unmatched = [] if "reality_check" in paper else ["pretrained"]
    assert [row for row in spec.rows if row not in matched and not is_one_pca(row)] == unmatched


def test_your_own_study_differs_by_key_and_by_method(tmp_path: Path) -> None:
    found = beside(tmp_path / "same", begun(tmp_path / "same"))
    assert found.differences == [FRESH_RUNS]
    names = {row.method: row.result.method for row in found.counterparts}
    assert names == {"pretrained": "Pretrained", "first": "ArcFace", "second": "Margin/class", "third": "MS+Miner"}
    study = STUDY.replace("trials: 50", "trials: 6").replace("runs: 10", "runs: 3")
    trunk = {"class_path": "levelfield.models.TimmTrunk", "init_args": {"name": "resnet50", "weights": None}}
    changes = {"model__trunk": trunk, "data__samples_per_class": 2, "trainer__callbacks": None}
    found = beside(tmp_path / "other", begun(tmp_path / "other", study, **changes))
    assert set(found.differences) == {
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
    """Table 3 of Fehervari et al., DREML: R@2 84.44, R@4 90.00, R@8 94.11, R@16 96.85, NMI 61.23."""
    spec = begun(tmp_path, PAPERS / "fehervari/table3.yaml")
    output, ours = io.StringIO(), [SummaryRow("dreml", "separated", "recall_at_2", 0.2, 0.01, 10)]
    print_beside(Console(file=output, width=90), StudyFolder(tmp_path, spec), ours)
    lines = [line.split() for line in output.getvalue().splitlines()]
    assert ["dreml", "20.0", "±", "1.0", "-", "-", "-"] in lines
    rows = [line[-4:] for line in lines if line[:1] == ["DREML"]]
    assert rows[1:] == [["84.4", "90.0", "94.1", "96.9"], rows[2]]
    assert rows[2][-1] == "61.2"


def test_the_published_optima_are_the_papers() -> None:
    """Supplementary tables of Musgrave et al. 2020."""
    found = {(each["loss"], each["dataset"], each["batch_size"]): each["optimum"] for each in searches()}
    assert len(found) == 56
    assert found["ntxent", "sop", 32]["temperature"] == pytest.approx(0.0002, abs=1e-4)
    assert found["ntxent", "cub200", 256]["temperature"] == pytest.approx(0.0415, abs=1e-4)
    assert found["contrastive", "cub200", 32]["pos_margin"] == pytest.approx(-0.2)
    assert [found["fast_ap", name, 32]["num_bins"] for name in ("cub200", "cars196", "sop")] == [17, 27, 16]
