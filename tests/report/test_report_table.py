"""The terminal table: percentages, intervals, and what must be said beside them."""

import shutil
from pathlib import Path

import pytest
import yaml

from levelfield.analysis.results import SummaryRow
from levelfield.cli.study import main
from levelfield.report.table import StudyTable, comparison_table, footnotes, score_text

ONCE = [{"by": "study toy", "reason": ""}]


def printed(notes: list[str], runs: int = 3) -> str:
    ci95 = 0.0123 if runs >= 3 else None
    test = [
        SummaryRow("arcface", "separated", "map_at_r", 0.31234, ci95, runs),
        SummaryRow("pretrained", "separated", "map_at_r", 0.11, None, 1),
    ]
    validation = [SummaryRow("arcface", "separated", "map_at_r", 0.4, ci95, runs)]
    table = comparison_table("toy", ["pretrained", "arcface"], test, validation)
    return str(StudyTable(table, notes))


def test_percent_shows_the_interval_only_where_there_is_one() -> None:
    assert score_text(SummaryRow("a", "separated", "map_at_r", 0.31234, 0.0123, 3)) == "31.2 ± 1.2"
    assert score_text(SummaryRow("a", "separated", "map_at_r", 0.31234, None, 2)) == "31.2"
    assert score_text(SummaryRow("a", "separated", "my_metric.hubness", -1.23456, 0.0567, 3)) == "-1.235 ± 0.057"
    assert score_text(None) == "-"


def test_table_lists_methods_with_scores_and_runs() -> None:
    lines = printed(footnotes(3, 4, ONCE, [])).splitlines()
    separated, concatenated = [line.split() for line in lines if "arcface" in line]
    assert separated == ["arcface", "31.2", "±", "1.2", "-", "-", "40.0", "±", "1.2", "3"]
    assert concatenated[:4] == ["arcface", "-", "-", "-"], "not tested yet"
    assert (
        max(len(line.rstrip()) for line in lines if not line.startswith(("Percent", "separated:", "pretrained:"))) <= 80
    )
    assert any("evaluated once: study toy" in line for line in lines)


def test_few_runs_are_said_to_be_few() -> None:
    text = printed(footnotes(2, 4, ONCE, []), runs=2)
    assert "too few runs for an interval" in text
    assert "too few runs" not in printed(footnotes(3, 4, ONCE, []))


def test_evaluations_are_counted_with_who_and_why() -> None:
    twice = [*ONCE, *ONCE, {"by": "levelfield test", "reason": "a bug in the loss"}]
    (note,) = (note for note in footnotes(3, 4, twice, []) if "evaluated" in note)
    assert "3 times" in note
    for said in ("study toy, 2 times", "levelfield test (a bug in the loss)"):
        assert said in note
    assert note in printed(footnotes(3, 4, twice, [])).replace("\n", " ")


def test_unequal_conditions_stand_below_the_table() -> None:
    notes = footnotes(3, 4, [], ["arcface: data.samples_per_class is 1, 4 for the others"])
    assert "Unequal conditions: arcface: data.samples_per_class is 1, 4 for the others." in printed(notes)
    assert any("not been evaluated" in note for note in notes)


def test_names_are_printed_as_they_are() -> None:
    """Square brackets are no markup: `[/red]` alone would be an error of rich."""
    table = comparison_table("[/red] [link=x]study[/link]", ["[bold]"], [], [])
    printed = str(StudyTable(table, ["[/note]"]))
    for name in ("[/red] [link=x]study[/link]", "  [bold]", "[/note]"):
        assert name in printed


def test_a_study_of_any_name_is_reported(
    finished: Path, toy_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "study"
    shutil.copytree(finished, folder)
    name = "[/red] $\\frac{ <b>&"
    for file in (toy_file, folder / "study.yaml"):
        content = yaml.safe_load(file.read_text())
        (tmp_path / file.name).write_text(yaml.safe_dump({**content, "name": name}, sort_keys=False))
    shutil.copy(tmp_path / "study.yaml", folder)
    for command in (["report"], ["run", "--dry-run"]):
        assert main([command[0], str(tmp_path / toy_file.name), "--output", str(folder), *command[1:]]) == 0
        assert name in capsys.readouterr().out
    page = (folder / "report" / "index.html").read_text()
    assert name not in page
    assert "[/red] $\\frac{ &lt;b&gt;&amp;" in page
