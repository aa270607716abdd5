"""`python papers`: each table and figure is a command, study files keep what the paper says, and they run.

The papers' numbers beside a study's: which row goes with which method, and which differences are named.
"""

import io
import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml
from rich.console import Console
from small_fit import small_config
from tiny_fit import REPOSITORY

from levelfield.analysis.results import SummaryRow
from levelfield.core.configuration import set_dotted
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import Job, study_jobs
from levelfield.study.rows import load_spec
from levelfield.study.spec import StudySpec, is_baseline, is_one_pca
from levelfield.training.build import Training
from papers.__main__ import exhibits, main
from papers.beside import Counterpart, differences_of, papers_beside, print_beside
from papers.published import papers, published, read_table

PAPERS = REPOSITORY / "papers"
# Of the Reality Check: data set, batch size, loss, space, optimum, validation MAP@R. FastAP at 32 has the space of 256.
SEARCHES = json.loads((PAPERS / "reality_check/published/searches.json").read_text())["searches"]
# As the papers number them.
TABLES = {"reality_check": 8, "zhai_wu": 6, "fehervari": 4, "vasilev_dyakonov": 7}
FIGURES = {"reality_check": 3, "zhai_wu": 4, "fehervari": 2, "vasilev_dyakonov": 4}
FURTHER = {"reality_check/validation_and_test", "vasilev_dyakonov/ranks"}
FILES = [path for paper in TABLES for path in sorted((PAPERS / paper).glob("*.yaml"))]
EXTENDED = {path.parent / name for path in FILES for name in re.findall(r"(?m)^extends: (\S+)$", path.read_text())}


STUDIES = sorted({file for exhibit in exhibits().values() for file in exhibit.files})


def test_every_table_and_figure_is_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    numbered = {f"{paper}/table{n}" for paper, count in TABLES.items() for n in range(1, count + 1)}
    numbered |= {f"{paper}/figure{n}" for paper, count in FIGURES.items() for n in range(1, count + 1)}
    assert set(exhibits()) == numbered | FURTHER
    for exhibit in exhibits().values():
        assert all(file in FILES for file in exhibit.files)
        if exhibit.read:
            assert exhibit.read == "levelfield data list" or (REPOSITORY / exhibit.read).is_file()
    assert main(["list"]) == 0
    printed = capsys.readouterr().out
    assert [name for name in exhibits() if f" {name} " not in printed] == []


def test_every_study_file_resolves_and_opens_with_what_it_takes() -> None:
    assert set(FILES) - set(STUDIES) <= EXTENDED, "of no table, and nothing extends it"
    for path in STUDIES:
        assert load_spec(path).name == f"{path.parent.name}_{path.stem}"
        opening = re.match(r"(?:#.*\n)+", path.read_text())
        assert opening is not None
        command = f"levelfield study run {path.relative_to(REPOSITORY)} --data.root DIR"
        assert all(part in opening[0] for part in ("Reaches in the paper:", "Takes:", command)), path


def begun(folder: Path, file: Path, **changes: object) -> StudySpec:
    """A study whose first runs have written their whole configuration; nothing is trained."""
    spec = load_spec(file)
    hashes = dict(spec.row_hashes)
    folder.mkdir(exist_ok=True)
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
        place = folder / (job := Job(method, "run", 0, 0)).path
        place.mkdir(parents=True, exist_ok=True)
        (place / "config.yaml").write_text(yaml.safe_dump(config))
        result = {**asdict(job), "configuration": hashes[method], "parameters": {}, "seed": 0, "seconds": 1.0}
        (place / "result.json").write_text(json.dumps({**result, "checkpoint": "", "validation": {"map_at_r": 0.5}}))
        (place / "best.ckpt").touch()
    return spec


@pytest.mark.full
@pytest.mark.parametrize("file", STUDIES, ids=lambda file: f"{file.parent.name}_{file.stem}")
def test_each_method_of_a_study_takes_two_steps_on_letters(file: Path, tmp_path: Path) -> None:
    """With its loss, embedder, sampler, optimizer and schedule; of a sweep the first value and the last."""
    methods: dict[str, list[str]] = {}
    for name in (spec := load_spec(file)).methods:
        methods.setdefault(name.partition("[")[0], []).append(name)
    for name in (name for names in methods.values() for name in {names[0], names[-1]}):
        config = spec.methods[name]
        own = {key: value for key, value in config["data"].items() if key not in ("root", "cache", "split")}
        model = {"trunk": small_config()["model"]["trunk"]}
        if "LayerNormEmbedder" in str(config["model"].get("embedder")):
            model["embedding_size"] = 96  # its only size
        small = {"max_epochs": 2, "check_val_every_n_epoch": 1, "accelerator": "cpu", "log_every_n_steps": 1}
        data = {"dataset": {"class_path": "Glyphs", "init_args": {"num_classes": 60, "image_size": 32}}}
        data |= {"steps_per_epoch": 1, "num_workers": 0, "transforms": {"crop_size": 32, "resize": 32}}
        of_job = {
            "model": {"loss": "ContrastiveLoss"} | config["model"] | model,
            "data": own | data,
            "trainer": config["trainer"] | small,
        }
        training = Training(of_job, tmp_path / name).build()
        training.trainer.fit(training.model, datamodule=training.datamodule)
        assert training.trainer.global_step == 2


def test_run_trains_the_studies_and_beside_shows_the_paper_s_rows(tmp_path: Path, monkeypatch, capsys) -> None:
    file = PAPERS / "zhai_wu/table4.yaml"
    title, told = papers()["zhai_wu"]["title"][:13], []
    monkeypatch.setattr("papers.__main__.levelfield", lambda words: told.append(words) or 0)
    for more in ([], ["--dry-run"]):
        begun(tmp_path / "zhai_wu_table4", file)
        assert main(["run", "zhai_wu/table4", "--output", str(tmp_path), *more]) == 0
        assert told.pop() == ["study", "run", str(file), "--output", str(tmp_path / "zhai_wu_table4"), *more]
        assert (title in capsys.readouterr().out) == (more == [])
    assert main(["beside", str(tmp_path / "zhai_wu_table4"), "--dataset", "cars196"]) == 0
    printed = capsys.readouterr().out
    assert (title in printed, "data set cub200 here, cars196 there" in printed) == (True, True)


def test_a_mistake_is_one_line(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    for words, named in (
        ("run reality_check/table9", "reality_check/table9"),
        ("run reality_check/table1 --data.rot DIR", "data.rot"),
        ("run reality_check/figure3", "figures/figure3.md"),
        ("beside nowhere", "nowhere"),
    ):
        assert main(words.split()) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert named in line


# The data set and the batch of the paper's tables; every how many epochs a training is evaluated, and how many
# evaluations without a better one end it.
FULL_SIZE = {"table4_cub": ("cub200", 32, 2, 5), "table8": ("cub200", 256, 2, 5)}
FULL_SIZE |= {"table5_cars": ("cars196", 32, 5, 3), "table6_sop": ("sop", 32, 20, 2)}


def test_each_study_scores_what_its_paper_s_table_has() -> None:
    """recall@1 is precision_at_1, which every study has, as MAP@R; Fehervari et al. take NMI's geometric mean."""
    for name, dataset in {
        **{f"fehervari/{table}": "cub200" for table in ("table2_bn_inception", "table2_resnet50")},
        **{"fehervari/table3": "cars196", "fehervari/table4": "sop"},
        **{f"zhai_wu/table{table}_cub": "cub200" for table in (1, 2, 3, 6)},
        **{f"zhai_wu/table{table}_sop": "sop" for table in (1, 2, 3, 5)},
        **{"zhai_wu/table5_inshop": "inshop", "zhai_wu/table6_cars": "cars196"},
        **{f"vasilev_dyakonov/{name}": name for name in ("cub200", "cars196", "sop", "dogs130", "news20", "wos134")},
    }.items():
        paper = name.partition("/")[0]
        there = {row["metric"] for row in read_table(paper, "tables.csv") if row["dataset"] == dataset}
        expected = there - {"recall_at_1", "reported_recall_at_1", "map_at_r"}
        if paper == "fehervari":
            expected = {"nmi_geometric" if metric == "nmi" else metric for metric in expected}
        spec = load_spec(PAPERS / f"{name}.yaml")
        if name == "fehervari/table2_bn_inception" or paper == "vasilev_dyakonov":
            assert len(spec.methods) == (11 if paper == "fehervari" else 16)  # all but DREML
        # Zhai and Wu's R@40 and R@50 of In-shop are its own paper's.
        assert set(spec.metrics) - {"recall_at_40", "recall_at_50"} == expected, name


def test_what_the_papers_say_and_no_table_of_protocols_has() -> None:
    """Zhai and Wu, section 4.1; Fehervari et al., sections 2.9 and 4.1; Vasilev and D'yakonov, section 4.2."""
    for method in load_spec(PAPERS / "zhai_wu/table6_cub.yaml").methods.values():
        rates = {method["model"][key] for key in ("trunk_lr", "embedder_lr", "loss_lr")}
        assert (method["data"]["replacement"], rates) == (True, {0.001})
    fehervari = load_spec(PAPERS / "fehervari/table2_bn_inception.yaml").methods
    softmax = fehervari["proxy_softmax"]["model"]["embedder"]["init_args"]
    assert softmax == {"bias": False, "dropout": 0.5, "weight_norm": True}
    assert fehervari["structured_clustering"]["model"]["loss"]["init_args"]["gamma_decay"] < 1
    # Table 1, last column.
    raw = {name for name, method in fehervari.items() if not method["model"].get("normalize", True)}
    assert raw == {"triplet_semihard", "lifted_structure", "n_pairs", "angular", "prototypical"}
    for name in ("vasilev_dyakonov/cub200", "vasilev_dyakonov/news20"):
        for method in load_spec(PAPERS / f"{name}.yaml").methods.values():
            assert "init_args" not in method["model"]["loss"]  # library defaults


@pytest.mark.parametrize("name", FULL_SIZE)
def test_a_full_size_study_is_the_paper_s(name: str) -> None:
    dataset, batch_size, every, patience = FULL_SIZE[name]
    spec = load_spec(PAPERS / "reality_check" / f"{name}.yaml")
    jobs = study_jobs(spec)
    assert len(jobs) == 14 * (50 + 10) * 4 + 4 + 1  # with the one PCA
    # Of the three tables with batches of 32 they are the paper's ten thousand trainings.
    assert 3 * sum(not is_baseline(job.method) for job in jobs) == 10_080
    spaces = {(each["loss"], each["dataset"], each["batch_size"]): each["space"] for each in SEARCHES}
    for method, config in spec.methods.items():
        assert config["data"]["batch_size"] == batch_size
        assert config["trainer"]["check_val_every_n_epoch"] == every
        (stopping,) = config["trainer"]["callbacks"]
        assert stopping["init_args"] == {"monitor": "val/map_at_r", "mode": "max", "patience": patience}
        searched = {key.rpartition(".")[2]: (it.low, it.high, it.scale) for key, it in spec.space(method).items()}
        space = spaces[method, dataset, batch_size]
        assert searched == {name: (it["low"], it["high"], it["scale"]) for name, it in space.items()}


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
        "trunk_weights random here, ImageNet's there",
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
    found = {(each["loss"], each["dataset"], each["batch_size"]): each["optimum"] for each in SEARCHES}
    assert len(found) == 56
    assert found["ntxent", "sop", 32]["temperature"] == pytest.approx(0.0002, abs=1e-4)
    assert found["ntxent", "cub200", 256]["temperature"] == pytest.approx(0.0415, abs=1e-4)
    assert found["contrastive", "cub200", 32]["pos_margin"] == pytest.approx(-0.2)
    assert [found["fast_ap", name, 32]["num_bins"] for name in ("cub200", "cars196", "sop")] == [17, 27, 16]
