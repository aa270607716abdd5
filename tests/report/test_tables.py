"""The terminal's tables: percentages, intervals, the order of rows, what fits a screen."""

import io
import re
from pathlib import Path

import pandas as pd
import pytest
import yaml
from deletable import RESULTS, needs
from refused import succeeded
from rich.console import Console
from tiny_fit import REPOSITORY

from levelfield.analysis.results import SummaryRow
from levelfield.analysis.shown_names import shown_names
from levelfield.analysis.verdict import SEEDS_ONLY
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


def kept_summary() -> pd.DataFrame:
    """Of separated scores, by metric and method."""
    table = pd.read_csv(ARCHIVE.with_name("summary.csv")).query("embedding == 'separated'")
    return table.set_index(["metric", "method"])


@needs(RESULTS)
def test_fourteen_methods_fit_a_screen_with_features_first_and_the_best_method_next(kept: StudyFolder) -> None:
    text = io.StringIO()
    Console(file=text, width=80).print(study_table(kept))
    lines = text.getvalue().splitlines()
    assert len(lines) <= 37, "and the path of the page and the next command"
    means = dict(kept_summary().loc["map_at_r", "mean"])
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
    lines, summary = paper_table(kept, markup).splitlines(), kept_summary()
    plus, bold = (r" $\pm$ ", "textbf") if markup == "latex" else (" ± ", "**")
    ntxent = next(line for line in lines if "NT-Xent" in line and "koleo" not in line.lower())
    cells = re.findall(rf"[\d.]+{re.escape(plus)}[\d.]+", ntxent)
    for metric, cell in zip(("map_at_r", "precision_at_1"), cells, strict=True):
        mean, half = 100 * summary.loc[(metric, "ntxent"), ["mean", "ci95"]]
        decimals = 2 if f"{half:e}".startswith("1") else 1
        assert half < 1, "so that the rule of the test is that of the table"
        assert cell == f"{mean:.{decimals}f}{plus}{half:.{decimals}f}"
    best = summary.loc["map_at_r", "mean"].max()
    assert any(f"{100 * best:.1f}" in line for line in lines if bold in line)


def test_a_study_of_any_name_is_reported_without_intervals_of_two_runs(copy: Path, run) -> None:
    """Square brackets are no markup: `[/red]` alone would be an error of rich."""
    name = "[/red] $\\frac{ <b>&"
    content = yaml.safe_load((copy / "study.yaml").read_text())
    (copy / "study.yaml").write_text(yaml.safe_dump({**content, "name": name}, sort_keys=False))
    assert name in succeeded(run("study", "resume", copy, "--dry-run"))
    printed = succeeded(run("study", "report", copy))
    assert name in printed
    assert "mean of 2 runs" in printed
    assert "±" not in printed
    assert name not in (copy / "report/index.html").read_text(), "tests/report/test_page.py has how text is written"
