"""The terminal's tables: percentages, intervals, the order of rows, what fits a screen."""

import csv
import io
from pathlib import Path

import pytest
import yaml
from deletable import RESULTS, needs
from rich.console import Console
from tiny_fit import REPOSITORY

from levelfield.analysis.results import SummaryRow
from levelfield.analysis.shown_names import shown_names
from levelfield.analysis.verdict import SEEDS_ONLY
from levelfield.cli.main import run as typed
from levelfield.report.table import paper_table, score_text, study_table
from levelfield.study.archive import unpack_study
from levelfield.study.folder import StudyFolder

ARCHIVE = REPOSITORY / "results/heads/glyphs_240/archive.tar.xz"


@pytest.fixture
def kept(tmp_path: Path) -> StudyFolder:
    unpack_study(ARCHIVE, tmp_path / "study")
    return StudyFolder.begun(tmp_path / "study")


def test_percent_shows_the_interval_only_where_there_is_one() -> None:
    assert score_text(SummaryRow("a", "separated", "map_at_r", 0.31234, 0.0123, 3)) == "31.2 ± 1.2"
    assert score_text(SummaryRow("a", "separated", "map_at_r", 0.31234, None, 2)) == "31.2"
    assert score_text(SummaryRow("a", "separated", "my_metric.hubness", -1.23456, 0.0567, 3)) == "-1.235 ± 0.057"
    assert score_text(None) == "-"


def kept_summary() -> dict[tuple[str, str], dict[str, str]]:
    """(method, metric) to the row of separated scores."""
    with open(ARCHIVE.with_name("summary.csv"), newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["embedding"] == "separated"]
    return {(row["method"], row["metric"]): row for row in rows}


@needs(RESULTS)
def test_fourteen_methods_fit_a_screen_with_features_first_and_the_best_method_next(kept: StudyFolder) -> None:
    text = io.StringIO()
    Console(file=text, width=80).print(study_table(kept))
    lines = text.getvalue().splitlines()
    assert len(lines) <= 37, "and the path of the page and the next command"
    means = {m: float(row["mean"]) for (m, metric), row in kept_summary().items() if metric == "map_at_r"}
    rows = {name: row for row, name in shown_names(kept.spec).items()}
    printed = [rows[name] for line in lines if (name := line.strip().split("  ")[0]) in rows and line.startswith("  ")]
    trained = sorted((row for row in means if "pretrained" not in row), key=lambda row: -means[row])
    assert printed[0] == "pretrained[features]"
    assert printed[-14:] == trained
    assert set(printed) == set(means)
    assert SEEDS_ONLY in " ".join(text.getvalue().split())  # this study searched each loss once


@needs(RESULTS)
@pytest.mark.parametrize("markup", ["latex", "markdown"])
def test_a_table_for_a_paper_has_the_digits_of_its_intervals(markup: str, kept: StudyFolder) -> None:
    head, *body = [line for line in paper_table(kept, markup).splitlines() if line.startswith("|") or "&" in line]
    between, row_ends, plus = (" & ", r" \\", r" $\pm$ ") if markup == "latex" else (" | ", " |", " ± ")
    assert head.count(between) == 2
    summary = kept_summary()
    ntxent = next(line for line in body if "NT-Xent" in line and "koleo" not in line.lower())
    cells = ntxent.removeprefix("| ").removesuffix(row_ends).split(between)[1:]
    for metric, cell in zip(("map_at_r", "precision_at_1"), cells, strict=True):
        mean, half = (100 * float(summary["ntxent", metric][key]) for key in ("mean", "ci95"))
        decimals = 2 if f"{half:e}".startswith("1") else 1
        assert half < 1, "so that the rule of the test is that of the table"
        assert cell == f"{mean:.{decimals}f}{plus}{half:.{decimals}f}"
    best = max(float(row["mean"]) for (_, metric), row in summary.items() if metric == "map_at_r")
    marked = [line for line in body if "**" in line or "textbf" in line]
    assert any(f"{100 * best:.1f}" in line for line in marked)


def test_a_study_of_any_name_is_reported_without_intervals_of_two_runs(copy, toy_file: Path, tmp_path, capsys) -> None:
    """Square brackets are no markup: `[/red]` alone would be an error of rich."""
    name = "[/red] $\\frac{ <b>&"
    for file, place in ((toy_file, tmp_path / "toy.yaml"), (copy / "study.yaml", copy / "study.yaml")):
        content = yaml.safe_load(file.read_text())
        place.write_text(yaml.safe_dump({**content, "name": name}, sort_keys=False))
    for command in (["report"], ["run", "--dry-run"]):
        assert typed("study", [command[0], str(tmp_path / "toy.yaml"), "--output", str(copy), *command[1:]]) == 0
        printed = capsys.readouterr().out
        assert name in printed
        assert command != ["report"] or ("mean of 2 runs" in printed and "±" not in printed)
    page = (copy / "report" / "index.html").read_text()
    assert name not in page
    assert "[/red] $\\frac{ &lt;b&gt;&amp;" in page
