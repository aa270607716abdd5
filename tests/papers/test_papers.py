"""`python papers`: every table and figure of the papers is a command, study files say what they take, and they run."""

import csv
import re
from pathlib import Path

import pytest
from tiny_fit import REPOSITORY

from levelfield.study.rows import load_spec
from papers.__main__ import exhibits, main
from papers.published import papers, read_table

PAPERS = REPOSITORY / "papers"
# As the papers number them; the Reality Check's text gives the autocorrelation.
TABLES = {"reality_check": 8, "zhai_wu": 6, "fehervari": 4, "vasilev_dyakonov": 7}
FIGURES = {"reality_check": 3, "zhai_wu": 4, "fehervari": 2, "vasilev_dyakonov": 4}
FURTHER = {"reality_check/autocorrelation", "reality_check/validation_and_test", "vasilev_dyakonov/ranks"}
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


def test_the_ranges_are_those_of_the_tables() -> None:
    reality = {4: ("cub200", "32"), 5: ("cars196", "32"), 6: ("sop", "32"), 8: ("cub200", "256")}
    vasilev = enumerate(("cars196", "news20", "cub200", "dogs130", "sop", "wos134"), start=2)
    for name, column, metric, rows in (
        *((f"reality_check/table{n}", "mean_percent", "map_at_r", {*of, "separated"}) for n, of in reality.items()),
        *((f"vasilev_dyakonov/table{n}", "percent", "map_at_r", {dataset}) for n, dataset in vasilev),
        ("fehervari/table3", "percent", "recall_at_1", {"cars196", "bn_inception"}),
        ("fehervari/table4", "percent", "recall_at_1", {"sop", "bn_inception"}),
    ):
        scores = [
            float(row[column])
            for row in read_table(exhibits()[name].paper, "tables.csv")
            if row["metric"] == metric and row["method"] != "Pretrained" and rows <= set(row.values())
        ]
        found = [float(number) for number in re.findall(r"\d+\.\d", exhibits()[name].published)]
        assert found == pytest.approx([min(scores), max(scores)], abs=0.051), name


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.full] * (n != QUICK)) for n in IN_MINIATURE])
def test_a_study_runs_in_miniature_to_the_paper_s_rows(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_a_figure_is_drawn_with_its_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Figure 3 of the Reality Check: -2.6 and -3.0 percent over the contrastive loss on CUB200."""
    assert main(["run", "reality_check/figure3", "--output", str(tmp_path)]) == 0
    assert "| over Contrastive, CUB200 | +108.9 | -2.6 | -3.0 |" in capsys.readouterr().out
    assert {path.name for path in tmp_path.rglob("*.*")} == {"figure3.md", "figure3.png"}


def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for words, named in (
        ("run reality_check/table9", "reality_check/table9"),
        ("run reality_check/table1 --data.rot DIR", "data.rot"),
        ("run reality_check/table2 --study x", "--study"),
        ("run reality_check/table3 --miniature", "--miniature"),
        ("run reality_check/table3 --runs 2", "--runs"),
        ("run reality_check/figure3 --study nowhere", "nowhere"),
        ("run vasilev_dyakonov/table1 --output x", "--output"),
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
