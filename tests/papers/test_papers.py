"""`python papers`: each table and figure is a command, study files keep what the paper says, and they run."""

import csv
import re
from pathlib import Path

import pytest
from tiny_fit import REPOSITORY

from levelfield.study.jobs import study_jobs
from levelfield.study.rows import load_spec
from levelfield.study.spec import is_baseline
from papers.__main__ import exhibits, main
from papers.published import papers, read_table, searches

PAPERS = REPOSITORY / "papers"
# As the papers number them.
TABLES = {"reality_check": 8, "zhai_wu": 6, "fehervari": 4, "vasilev_dyakonov": 7}
FIGURES = {"reality_check": 3, "zhai_wu": 4, "fehervari": 2, "vasilev_dyakonov": 4}
FURTHER = {"reality_check/validation_and_test", "vasilev_dyakonov/ranks"}
METHOD = PAPERS / "fehervari" / "dreml.yaml"  # of studies, and none itself
FILES = [path for paper in TABLES for path in sorted((PAPERS / paper).glob("*.yaml")) if path != METHOD]
EXTENDED = {path.parent / name for path in FILES for name in re.findall(r"(?m)^extends: (\S+)$", path.read_text())}
IN_MINIATURE = [name for name, exhibit in exhibits().items() if exhibit.studies]
QUICK = "zhai_wu/figure4"


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
    named = {file for exhibit in exhibits().values() for file in exhibit.files}
    assert set(FILES) - named <= EXTENDED, "of no table, and nothing extends it"
    for path in named:
        assert load_spec(path).name == f"{path.parent.name}_{path.stem}"
        opening = re.match(r"(?:#.*\n)+", path.read_text())
        assert opening is not None
        command = f"levelfield study run {path.relative_to(REPOSITORY)} --data.root DIR"
        assert all(part in opening[0] for part in ("Reaches in the paper:", "Takes:", command)), path


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.full] * (n != QUICK)) for n in IN_MINIATURE])
def test_a_study_runs_in_miniature_to_the_paper_s_rows(name: str, tmp_path: Path, capsys) -> None:
    assert main(["run", name, "--miniature", "--output", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for file in exhibits()[name].files:
        spec = load_spec(file)
        with open(tmp_path / "miniature" / spec.name / "summary.csv", newline="") as table:
            rows = list(csv.DictReader(table))
        methods = {row["method"].partition("[")[0] for row in rows}
        assert {method.partition("[")[0] for method in spec.methods} <= methods
        assert {*spec.metrics, "map_at_r"} <= {row["metric"] for row in rows}
        there = re.findall(r"data set (?:glyphs|text_table) here, (\w+) there", printed)[-1]
        assert main(["beside", str(tmp_path / "miniature" / spec.name), "--dataset", there]) == 0
        assert papers()[exhibits()[name].paper]["title"][:10] in capsys.readouterr().out


def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for words, named in (
        ("run reality_check/table9", "reality_check/table9"),
        ("run reality_check/table1 --data.rot DIR", "data.rot"),
        ("run reality_check/figure3", "figures/figure3.md"),
        ("beside nowhere", "nowhere"),
    ):
        assert main(words.split()) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert named in line


def test_a_miniature_replaces_no_other_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    definition = tmp_path / "miniature" / "zhai_wu_figure4" / "study.yaml"
    definition.parent.mkdir(parents=True)
    definition.write_text("name: mine\n")
    assert main(["run", QUICK, "--miniature", "--output", str(tmp_path)]) == 2
    assert str(definition.parent) in capsys.readouterr().err
    assert definition.read_text() == "name: mine\n"


# The data set and the batch of the paper's tables.
FULL_SIZE = {"table4_cub": ("cub200", 32), "table5_cars": ("cars196", 32), "table6_sop": ("sop", 32)}
FULL_SIZE |= {"table8": ("cub200", 256)}
# Evaluations: every how many epochs, and how many without a better one end a training (DESIGN: 9, 14, 39 epochs).
STOPPING = {"cub200": (2, 5), "cars196": (5, 3), "sop": (20, 2)}


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
        metrics = spec.metrics
        if name == "fehervari/table2_bn_inception" or paper == "vasilev_dyakonov":
            assert len(spec.methods) == (12 if paper == "fehervari" else 16)
        # Zhai and Wu's R@40 and R@50 of In-shop are its own paper's.
        assert set(metrics) - {"recall_at_40", "recall_at_50"} == expected, name


def test_what_the_papers_say_and_no_table_of_protocols_has() -> None:
    """Zhai and Wu, section 4.1; Fehervari et al., sections 2.9 and 4.1; Vasilev and D'yakonov, section 4.2."""
    for method in load_spec(PAPERS / "zhai_wu/table6_cub.yaml").methods.values():
        rates = {method["model"][key] for key in ("trunk_lr", "embedder_lr", "loss_lr")}
        assert (method["data"]["replacement"], rates) == (True, {0.001})
    fehervari = load_spec(PAPERS / "fehervari/table2_bn_inception.yaml").methods
    softmax = fehervari["proxy_softmax"]["model"]["embedder"]["init_args"]
    assert softmax == {"bias": False, "dropout": 0.5, "weight_norm": True}
    assert fehervari["structured_clustering"]["model"]["loss"]["init_args"]["gamma_decay"] < 1
    # Table 1, last column; DREML's members are unit vectors here (docs of MetaClassLoss).
    raw = {name for name, method in fehervari.items() if not method["model"].get("normalize", True)}
    assert raw == {"triplet_semihard", "lifted_structure", "n_pairs", "angular", "prototypical"}
    for name in ("vasilev_dyakonov/cub200", "vasilev_dyakonov/news20"):
        for method in load_spec(PAPERS / f"{name}.yaml").methods.values():
            assert "init_args" not in method["model"]["loss"]  # library defaults


@pytest.mark.parametrize("name", FULL_SIZE)
def test_a_full_size_study_is_the_paper_s(name: str) -> None:
    dataset, batch_size = FULL_SIZE[name]
    spec = load_spec(PAPERS / "reality_check" / f"{name}.yaml")
    jobs = study_jobs(spec)
    assert len(jobs) == 14 * (50 + 10) * 4 + 4 + 1  # with the one PCA
    # Of the three tables with batches of 32 they are the paper's ten thousand trainings.
    assert 3 * sum(not is_baseline(job.method) for job in jobs) == 10_080
    every, patience = STOPPING[dataset]
    spaces = {(each["loss"], each["dataset"], each["batch_size"]): each["space"] for each in searches()}
    for method, config in spec.methods.items():
        assert config["data"]["batch_size"] == batch_size
        assert config["trainer"]["check_val_every_n_epoch"] == every
        (stopping,) = config["trainer"]["callbacks"]
        assert stopping["init_args"] == {"monitor": "val/map_at_r", "mode": "max", "patience": patience}
        space = spaces[method, dataset, batch_size]
        searched = {key.rpartition(".")[2]: place for key, place in spec.space(method).items()}
        assert set(searched) == set(space)
        for argument, place in space.items():
            found = searched[argument]
            assert (found.low, found.high, found.scale) == (place["low"], place["high"], place["scale"])
