"""The papers' numbers beside a study's: which row goes with which method, and what is said about the protocols."""

import csv
import io
import json
from importlib.resources import files
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from levelfield.analysis.papers import papers_beside, protocol_differences
from levelfield.analysis.results import SummaryRow
from levelfield.published.tables import papers, published
from levelfield.report.papers_table import print_papers
from levelfield.study.definition.configuration import set_dotted
from levelfield.study.definition.spec import StudySpec
from levelfield.study.definition.study_file import load_spec
from levelfield.study.jobs.job import Job, job_hash
from levelfield.study.record import StudyRecord

PAPER = "Musgrave, Belongie, Lim 2020, A Metric Learning Reality Check (tables 4-6 and 8)"

STUDY = """
name: birds
base: [../data/cub200.yaml, ../protocol/reality_check.yaml]
methods:
  first: ../method/arcface.yaml
  second: ../method/margin_per_class.yaml
  third: ../method/multi_similarity_miner.yaml
  mine: {model: {loss: {class_path: my_loss.ArcFaceLoss}}}
spaces: {mine: {}}
search: {trials: 50}
runs: 10
"""


def begun(folder: Path, study: str | Path = STUDY, **changes: object) -> StudySpec:
    """A study whose first runs have written their whole configuration; nothing is trained."""
    if isinstance(study, str):
        file = folder / "birds.yaml"
        file.write_text(study.replace("../", f"{Path('configs').resolve()}/"))
    else:
        file = study
    spec = load_spec(file)
    for method, config in spec.methods.items():
        config["model"].setdefault("distance", "cosine")  # defaults that a job's file has
        config["model"].setdefault("miner", None)
        loss = config["model"].get("loss")
        if isinstance(loss, dict) and "weight_init" in loss.get("init_args", {}):
            loss["init_args"].setdefault("class_fraction", 1.0)
        for key, value in changes.items():
            config = set_dotted(config, key.replace("__", "."), value)
        job = Job(method, "run", 0, 0)
        (folder / job.path).mkdir(parents=True)
        (folder / job.path / "config.yaml").write_text(yaml.safe_dump(config))
        result = {"method": method, "configuration": job_hash(spec, job)}
        (folder / job.path / "result.json").write_text(json.dumps(result))
    return spec


def test_every_number_is_the_papers() -> None:
    with files("levelfield.published").joinpath("reality_check_tables.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["method"] == "SNR" and row["dataset"] == "sop"]
    found = [r for r in published("sop", "SignalToNoiseRatioContrastiveLoss") if r.paper == "reality_check"]
    scores = {(r.embedding, metric): pair for r in found for metric, pair in r.scores.items()}
    assert len(rows) == len(scores) == 6
    for row in rows:
        mean, half_width = scores[row["embedding"], row["metric"]]
        assert f"{100 * mean:.2f}" == f"{float(row['mean_percent']):.2f}"
        assert f"{100 * half_width:.2f}" == f"{float(row['ci95_half_width']):.2f}"


def test_rows_are_found_by_class_miner_and_arguments() -> None:
    def names(*what: object) -> list[str]:
        return [
            r.method for r in published("cub200", *what) if r.paper == "reality_check" and r.embedding == "separated"
        ]

    assert names("MultiSimilarityLoss") == ["MS", "MS"]  # batches of 32 and of 256
    assert names("MultiSimilarityLoss", "MultiSimilarityMiner") == ["MS+Miner", "MS+Miner"]
    assert names("MarginLoss") == ["Margin", "Margin"]
    assert names("MarginLoss", None, {"beta_per_class": True}) == ["Margin/class", "Margin/class"]
    assert names(None) == ["Pretrained", "Pretrained"]
    assert names("ArcFaceLoss", "MultiSimilarityMiner") == []
    assert published("glyphs", "ArcFaceLoss") == []


def test_other_papers_rows() -> None:
    # Table 7 of Vasilev and D'yakonov; tables 2 (BN-Inception, 512) of Zhai and Wu; table 2 of Fehervari et al.
    [text] = published("wos134", "SignalToNoiseRatioContrastiveLoss")
    assert (text.paper, text.protocol["model.trunk"]) == ("vasilev_dyakonov", "distilbert")
    assert "data.transforms.crop_size" not in text.protocol
    softmax = {
        (r.protocol["model.trunk"], r.protocol["model.embedding_size"], r.protocol["model.distance"]): r.scores[
            "precision_at_1"
        ][0]
        for r in published("cub200", "NormalizedSoftmaxLoss")
        if r.paper == "zhai_wu"
    }
    assert softmax["bn_inception", 512, "cosine"] == 0.596
    assert softmax["resnet50", 2048, "cosine"] == 0.653
    assert softmax["resnet50", 2048, "hamming"] == 0.633
    semihard = {"triplets_per_anchor": "semihard"}
    assert {r.method for r in published("cub200", "TripletMarginLoss", None, semihard)} == {"Triplet Semihard"}
    assert {r.method for r in published("cub200", "TripletMarginLoss")} == {"Triplet", "Triplet Loss"}
    pairs = [r for r in published("cub200", "NPairsLoss") if r.paper == "fehervari"]
    assert {r.protocol["model.trunk"] for r in pairs} == {"bn_inception", "resnet50"}


def test_the_protocols_own_study_differs_in_what_no_key_holds_alone(tmp_path: Path) -> None:
    spec = begun(tmp_path)
    [paper] = [p for p in papers_beside(StudyRecord(tmp_path, spec)) if p.title == PAPER]
    assert [(row.method, row.result.method, row.result.embedding) for row in paper.counterparts] == [
        (method, name, embedding)
        for method, name in (
            ("pretrained", "Pretrained"),
            ("first", "ArcFace"),
            ("second", "Margin/class"),
            ("third", "MS+Miner"),
        )
        for embedding in ("concatenated", "separated")
    ]
    assert all(row.result.protocol["data.batch_size"] == 32 for row in paper.counterparts)
    assert paper.differences == ["the selected trial is one of the ten runs there; here every run is a fresh one"]


@pytest.mark.parametrize(
    ("study", "paper", "unmatched"),
    [
        ("reality_check/table4_cub", "reality_check", []),
        ("reality_check/table8", "reality_check", []),
        ("reality_check/table5_cars", "reality_check", []),
        ("reality_check/table6_sop", "reality_check", []),
        ("reality_check/table1_cub", "reality_check_trunks", []),
        ("reality_check/table2_sop", "reality_check_trunks", []),
        ("zhai_wu/table1_sop", "zhai_wu", ["pretrained"]),
        ("zhai_wu/table4", "zhai_wu", ["pretrained"]),
        ("zhai_wu/table5_inshop", "zhai_wu", ["pretrained"]),
        ("zhai_wu/table6_cub", "zhai_wu", ["pretrained"]),
        ("fehervari/table2_resnet50", "fehervari", ["pretrained"]),
        ("fehervari/table2_bn_inception", "fehervari", ["pretrained"]),
        ("vasilev_dyakonov/cub200", "vasilev_dyakonov", ["pretrained"]),
        ("vasilev_dyakonov/news20", "vasilev_dyakonov", ["pretrained"]),
    ],
)
def test_the_papers_own_studies_differ_in_what_no_key_holds_alone(
    study: str, paper: str, unmatched: list[str], tmp_path: Path
) -> None:
    spec = begun(tmp_path, Path(f"configs/study/{study}.yaml"))
    [beside] = [p for p in papers_beside(StudyRecord(tmp_path, spec)) if p.title == papers()[paper]["title"]]
    theirs = papers()[paper]["protocol"].get("folds", spec.folds)
    folds = [] if spec.folds == theirs else [f"folds {spec.folds} here, {theirs} there"]
    assert beside.differences == [*folds, *papers()[paper].get("remarks", [])]
    matched = {row.method for row in beside.counterparts}
    assert [method for method in spec.rows if method not in matched] == unmatched


def test_a_sweep_s_values_stand_beside_their_own_rows(tmp_path: Path) -> None:
    """Table 4 of Zhai and Wu, and Figure 4's two shares."""
    spec = begun(tmp_path, Path("configs/study/zhai_wu/table4.yaml"))
    [beside] = [p for p in papers_beside(StudyRecord(tmp_path, spec)) if p.title == papers()["zhai_wu"]["title"]]
    recalls = {row.method: row.result.scores["precision_at_1"][0] for row in beside.counterparts}
    by_value = {"none": 0.595, 1: 0.596, 3: 0.6, 12: 0.608, 25: 0.613, 37: 0.596, 75: 0.409}
    assert recalls == {f"softmax[{value}]": recall for value, recall in by_value.items()}
    spec = begun(tmp_path / "shares", Path("configs/study/zhai_wu/figure4.yaml"))
    found = papers_beside(StudyRecord(tmp_path / "shares", spec))
    [beside] = [p for p in found if p.title == papers()["zhai_wu"]["title"]]
    recalls = {row.method: row.result.scores["precision_at_1"][0] for row in beside.counterparts}
    assert recalls == {"softmax[0.001]": 0.72, "softmax[0.01]": 0.757, "softmax[0.1]": 0.782, "softmax[1.0]": 0.782}
    assert "softmax[0.1]: model.loss.init_args.class_fraction 0.1 here, 1 there" in beside.differences


def test_the_terminal_shows_every_metric_that_study_and_paper_have(tmp_path: Path) -> None:
    """Table 3 of Fehervari et al., DREML: R@2 84.44, R@4 90.00, R@8 94.11, R@16 96.85, NMI 61.23."""
    spec = begun(tmp_path, Path("configs/study/fehervari/table3.yaml"))
    output = io.StringIO()
    print_papers(Console(file=output, width=80), StudyRecord(tmp_path, spec), [])
    rows = [line.split()[-4:] for line in output.getvalue().splitlines() if line.split()[:1] == ["DREML"]]
    assert rows[1:] == [["84.4", "90.0", "94.1", "96.9"], rows[2]]
    assert rows[2][-1] == "61.2"


def test_differences_are_named_by_key_and_by_method(tmp_path: Path) -> None:
    study = STUDY.replace("trials: 50", "trials: 6").replace("runs: 10", "runs: 3")
    trunk = {"class_path": "levelfield.models.TimmTrunk", "init_args": {"name": "resnet50", "weights": "pretrained"}}
    spec = begun(tmp_path, study, model__trunk=trunk, data__samples_per_class=2, trainer__callbacks=None)
    [paper] = [p for p in papers_beside(StudyRecord(tmp_path, spec)) if p.title == PAPER]
    steps = "after 1000 epochs of 100 steps"
    assert sorted(paper.differences[:-1]) == sorted(
        [
            "model.trunk resnet50 here, bn_inception there",
            "second, third: data.samples_per_class 2 here, 4 there",
            f"stopping {steps} here, early stopping there",
            "search.trials 6 here, 50 there",
            "runs 3 here, 10 there",
            "first: data.samples_per_class 2 here, 1 there",
        ]
    )


@pytest.mark.parametrize(("ours", "theirs"), [(256, 256), (16, 32), (512, 256)])
def test_of_several_rows_the_nearest_counts(ours: int, theirs: int, tmp_path: Path) -> None:
    spec = begun(tmp_path, data__batch_size=ours)
    rows = [row for p in papers_beside(StudyRecord(tmp_path, spec)) if p.title == PAPER for row in p.counterparts]
    assert [row.result.protocol["data.batch_size"] for row in rows if row.method == "first"] == [theirs, theirs]


def test_random_weights_are_a_difference(tmp_path: Path) -> None:
    spec = begun(tmp_path)
    config = set_dotted(spec.methods["first"], "model.trunk.init_args.weights", None)
    [sentence] = protocol_differences({}, config, spec)
    assert sentence == "trunk begins at random weights here, at ImageNet's there"


def test_the_terminal_shows_ours_above_theirs(tmp_path: Path) -> None:
    spec = begun(tmp_path)
    output = io.StringIO()
    ours = [SummaryRow("first", "separated", "map_at_r", 0.2, 0.01, 10)]
    print_papers(Console(file=output, width=80), StudyRecord(tmp_path, spec), ours)
    lines = [line.rstrip() for line in output.getvalue().splitlines()]
    place = next(n for n, line in enumerate(lines) if line.split()[:1] == ["first"] and "20.0" in line)
    assert lines[place].split() == ["first", "20.0", "±", "1.0", "-", "-"]
    # Table 4 of the paper: 21.49 ± 0.16, 32.37 ± 0.17, 60.17 ± 0.32.
    assert " ".join(lines[place + 1].split()) == "ArcFace (bn_inception, 128) 21.5 ± 0.2 32.4 ± 0.2 60.2 ± 0.3"
    assert any("the selected trial is one of the ten runs there" in line for line in lines)


@pytest.mark.parametrize("study", ["glyphs_finetune.yaml", "typefaces_quick.yaml"])
def test_nothing_is_said_where_nothing_is_published(study: str, tmp_path: Path) -> None:
    configs = Path("configs/study") / study
    spec = begun(tmp_path, configs.read_text())
    assert papers_beside(StudyRecord(tmp_path, spec)) == []
    output = io.StringIO()
    print_papers(Console(file=output), StudyRecord(tmp_path, spec), [])
    assert output.getvalue() == ""
