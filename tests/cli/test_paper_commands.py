"""`levelfield paper`: a row for every table and figure, study files that say what they take, and all of it in small."""

import csv
import re
from importlib.resources import files
from pathlib import Path

import pytest
import yaml

from levelfield.analysis.exhibits import exhibits
from levelfield.cli.main import main
from levelfield.report.paper_figures import paper_figures
from levelfield.study.definition.study_file import find_study, load_spec

STUDIES = Path(__file__).parents[2] / "configs" / "study"
# As the papers number them; the Reality Check's text gives the autocorrelation.
TABLES = {"reality_check": 8, "zhai_wu": 6, "fehervari": 4, "vasilev_dyakonov": 7}
FIGURES = {"reality_check": 3, "zhai_wu": 4, "fehervari": 2, "vasilev_dyakonov": 4}
FILES = [path for paper in TABLES for path in sorted((STUDIES / paper).glob("*.yaml"))]
EXTENDED = {
    (path.parent / yaml.safe_load(path.read_text())["extends"]).resolve()
    for path in FILES
    if "extends" in yaml.safe_load(path.read_text())
}
IN_SMALL = [name for name, each in exhibits().items() if each.studies]
QUICK = ("reality_check/table2", "zhai_wu/figure4", "fehervari/table4")


def test_every_table_and_figure_has_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = {f"{paper}/table{n}" for paper, count in TABLES.items() for n in range(1, count + 1)}
    wanted |= {f"{paper}/figure{n}" for paper, count in FIGURES.items() for n in range(1, count + 1)}
    beside = {"reality_check/autocorrelation", "reality_check/validation_and_test", "vasilev_dyakonov/ranks"}
    assert set(exhibits()) == wanted | beside
    assert {name for name, each in exhibits().items() if each.drawn} == set(paper_figures())
    assert all(bool(each.studies) + each.drawn + bool(each.read) == 1 for each in exhibits().values())
    assert main(["paper", "list"]) == 0
    printed = capsys.readouterr().out
    assert all(name.partition("/")[2] in printed for name in wanted)
    assert "missing" not in printed


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_study_file_resolves_and_opens_with_what_it_takes(path: Path) -> None:
    name = f"{path.parent.name}/{path.stem}"
    said = {study for each in exhibits().values() for study in each.studies}
    if name not in said:
        assert path.resolve() in EXTENDED, f"{name} is of no table and nothing extends it"
        return
    spec = load_spec(find_study(name))
    assert spec.name == name.replace("/", "_")
    opening = re.match(r"(?:#.*\n)+", path.read_text())
    assert opening is not None
    for said_first in ("Reaches in the paper:", "Takes:", f"levelfield study run {name} --data.root DIR"):
        assert said_first in opening[0], said_first


@pytest.mark.parametrize(
    ("name", "paper", "column", "metric", "rows"),
    [
        *(
            (f"reality_check/table{n}", "reality_check", "mean_percent", "map_at_r", (dataset, batch, "separated"))
            for n, dataset, batch in ((4, "cub200", "32"), (5, "cars196", "32"), (6, "sop", "32"), (8, "cub200", "256"))
        ),
        *(
            (f"vasilev_dyakonov/table{n}", "vasilev_dyakonov", "percent", "map_at_r", (dataset,))
            for n, dataset in enumerate(("cars196", "news20", "cub200", "dogs130", "sop", "wos134"), start=2)
        ),
        ("fehervari/table3", "fehervari", "percent", "recall_at_1", ("cars196", "bn_inception")),
        ("fehervari/table4", "fehervari", "percent", "recall_at_1", ("sop", "bn_inception")),
    ],
)
def test_the_ranges_are_those_of_the_tables(name: str, paper: str, column: str, metric: str, rows: tuple) -> None:
    with files("levelfield.published").joinpath(f"{paper}_tables.csv").open() as file:
        scores = [
            float(row[column])
            for row in csv.DictReader(file)
            if row["metric"] == metric and row["method"] != "Pretrained" and set(rows) <= set(row.values())
        ]
    low, high = (float(number) for number in re.findall(r"\d+\.\d", exhibits()[name].published))
    assert (low, high) == (pytest.approx(min(scores), abs=0.051), pytest.approx(max(scores), abs=0.051))


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.full) for n in IN_SMALL])
def test_a_miniature_ends_with_a_table_and_the_paper_s_rows(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["paper", "run", name, "--miniature", "--output", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for study in exhibits()[name].studies:
        spec = load_spec(find_study(study))
        with open(tmp_path / "miniature" / spec.name / "summary.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        methods = {row["method"].partition("[")[0] for row in rows}
        assert {method.partition("[")[0] for method in spec.methods} <= methods
        assert {*spec.metrics, "map_at_r"} <= {row["metric"] for row in rows}
    assert "The protocols differ, so a gap between the two is no verdict on either:" in printed
    assert re.search(r"data set (glyphs|text_table) here, \w+ there", printed)


def test_what_needs_no_training_is_computed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Table 3 of the Reality Check, as printed: 10, 12, 20 and 100."""
    assert main(["paper", "run", "reality_check/table3", "--output", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert (tmp_path / "papers" / "reality_check" / "table3.md").is_file()
    assert all(f" {value} " in printed for value in ("10", "12", "20", "100"))
    assert main(["paper", "run", "vasilev_dyakonov/table1"]) == 0
    assert "nothing to measure, see docs/datasets.md" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run"], "name a table or figure"),
        (["run", "reality_check/table9"], "no table or figure 'reality_check/table9'; did you mean"),
        (["run", "reality_check/table1", "--miniature", "--runs", "2"], "--runs"),
        (["run", "reality_check/table1", "--data.rot", "DIR"], "data.rot"),
        (["show"], "show"),
        (["list", "reality_check/table1"], "paper list shows all: leave 'reality_check/table1' out"),
        (["list", "--output", "x"], "--output is an option of run: list does not use it"),
        (["run", "--output", "x", "reality_check/table1"], "name a table or figure first"),
        (
            ["run", "reality_check/table3", "--miniature"],
            "--miniature: reality_check/table3 is computed",
        ),
        (
            ["run", "reality_check/table2", "--miniature", "--study", "x"],
            "--study: reality_check/table2 is not",
        ),
        (
            ["run", "vasilev_dyakonov/table1", "--output", "x"],
            "--output: vasilev_dyakonov/table1 has nothing",
        ),
    ],
)
def test_mistakes_are_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.strip().splitlines()) == 1
