"""The terminal's tables: percentages, intervals, the order of rows, what fits a screen, and ranks over studies."""

import csv
import io
import json
import re
import shutil
from collections.abc import Callable
from math import exp
from pathlib import Path

import pytest
import yaml
from deletable import RESULTS, needs
from rich.console import Console
from toy_study import TOY, evaluated

from levelfield.analysis.conclusion import conclusion
from levelfield.analysis.results import SummaryRow, collect_rows
from levelfield.analysis.shown_names import shown_names
from levelfield.analysis.verdicts import SEEDS_ONLY
from levelfield.cli.commands import run as typed
from levelfield.core.errors import UserError
from levelfield.report.ranks_table import ranks_tables
from levelfield.report.table import score_text, study_table
from levelfield.study.archive import unpack_study
from levelfield.study.folder import StudyFolder
from levelfield.study.rows import load_spec

ARCHIVE = Path(__file__).parents[2] / "results/glyphs_240/archive.tar.xz"


def test_percent_shows_the_interval_only_where_there_is_one() -> None:
    assert score_text(SummaryRow("a", "separated", "map_at_r", 0.31234, 0.0123, 3)) == "31.2 ± 1.2"
    assert score_text(SummaryRow("a", "separated", "map_at_r", 0.31234, None, 2)) == "31.2"
    assert score_text(SummaryRow("a", "separated", "my_metric.hubness", -1.23456, 0.0567, 3)) == "-1.235 ± 0.057"
    assert score_text(None) == "-"


@needs(RESULTS)
def test_fourteen_methods_fit_a_screen_with_features_first_and_the_best_method_next(tmp_path: Path) -> None:
    unpack_study(ARCHIVE, tmp_path / "study")
    study = StudyFolder.begun(tmp_path / "study")
    text = io.StringIO()
    Console(file=text, width=80).print(study_table(study))
    lines = text.getvalue().splitlines()
    assert len(lines) <= 37, "and the path of the page and the next command"
    with open(ARCHIVE.with_name("summary.csv"), newline="") as file:
        rows_of_map = {("separated", "map_at_r")}
        summary = [row for row in csv.DictReader(file) if (row["embedding"], row["metric"]) in rows_of_map]
    means = {row["method"]: float(row["mean"]) for row in summary}
    rows = {name: row for row, name in shown_names(study.spec).items()}
    printed = [rows[name] for line in lines if (name := line.strip().split("  ")[0]) in rows and line.startswith("  ")]
    trained = sorted((row for row in means if "pretrained" not in row), key=lambda row: -means[row])
    assert printed[0] == "pretrained[features]"
    assert printed[-14:] == trained
    assert set(printed) == set(means)
    name = shown_names(study.spec)[trained[0]]
    (best,) = (line.removeprefix(f"  {name} ").split() for line in lines if line.startswith(f"  {name} "))
    ci95 = next(float(row["ci95"]) for row in summary if row["method"] == trained[0])
    assert best[:3] == [f"{100 * means[trained[0]]:.1f}", "±", f"{100 * ci95:.1f}"]
    assert len(conclusion(study, collect_rows(study))) == 4
    assert SEEDS_ONLY in " ".join(text.getvalue().split())  # this study searched each loss once


def test_the_toy_study_has_too_few_runs_for_intervals(copy: Path) -> None:
    text = str(study_table(StudyFolder.begun(copy)))
    assert "mean of 2 runs\n" in text
    assert "±" not in text
    assert "too few runs" in text
    before = len(StudyFolder.begun(copy).evaluations())  # other tests' included
    assert text.rstrip().endswith(f"evaluated {'once' if before == 1 else f'{before} times'}.")
    evaluated(copy, by="levelfield test", reason="a bug in the loss")
    assert str(study_table(StudyFolder.begun(copy))).rstrip().endswith(f"evaluated {before + 1} times.")


def test_a_study_of_any_name_is_reported(
    finished: Path, toy_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Square brackets are no markup: `[/red]` alone would be an error of rich."""
    folder = tmp_path / "study"
    shutil.copytree(finished, folder)
    name = "[/red] $\\frac{ <b>&"
    for file in (toy_file, folder / "study.yaml"):
        content = yaml.safe_load(file.read_text())
        (tmp_path / file.name).write_text(yaml.safe_dump({**content, "name": name}, sort_keys=False))
    shutil.copy(tmp_path / "study.yaml", folder)
    for command in (["report"], ["run", "--dry-run"]):
        assert typed("study", [command[0], str(tmp_path / toy_file.name), "--output", str(folder), *command[1:]]) == 0
        assert name in capsys.readouterr().out
    page = (folder / "report" / "index.html").read_text()
    assert name not in page
    assert "[/red] $\\frac{ &lt;b&gt;&amp;" in page


METHODS = {"contrastive": "ContrastiveLoss", "ntxent": "NTXentLoss", "triplet": "TripletMarginLoss"}


def scored_study(folder: Path, name: str, scores: dict[str, float], losses: dict[str, str] = METHODS) -> Path:
    """A study whose runs were tested with these scores; concatenated embeddings score the opposite."""
    file = folder / f"{name}.yaml"
    head, rest = TOY.split("methods:")
    tail = rest[rest.index("folds:") :]
    methods = "".join(f"  {m}: {{model: {{loss: {losses[m]}}}}}\n" for m in scores)
    file.write_text(f"{head}methods:\n{methods}{tail}".replace("name: toy", f"name: {name}"))
    spec = load_spec(file)
    study = StudyFolder(folder / name, spec)
    study.folder.mkdir()
    study.spec_file.write_text(spec.to_yaml())
    evaluation = evaluated(study.folder, by=f"study {name}")
    for method, score in scores.items():
        for run in range(2):
            path = study.test_file(method, run)
            path.parent.mkdir(parents=True)
            scored = {"separated": [{"map_at_r": score}] * 2, "concatenated": {"map_at_r": 1 - score}}
            of = {"method": method, "configuration": study.test_hash(method), "evaluation": evaluation}
            path.write_text(json.dumps(of | scored))
    return study.folder


def test_methods_are_ranked_in_each_study_and_averaged(tmp_path: Path, run: Callable) -> None:
    first = scored_study(tmp_path, "letters", {"contrastive": 0.3, "ntxent": 0.2, "triplet": 0.1})
    second = scored_study(tmp_path, "words", {"triplet": 0.6, "ntxent": 0.5, "contrastive": 0.7})
    code, printed, _ = run("study", "report", tmp_path / "letters.yaml", "--output", first, "--with", second)
    assert code == 0
    _, separated, concatenated = re.split("^Ranks over 2 studies by MAP@R of ", printed, flags=re.MULTILINE)

    def rows(section: str) -> list[list[str]]:
        return [line.split() for line in section.splitlines() if line.split()[:1] and line.split()[0] in METHODS]

    # Ranks 1 2 3 and 1 3 2; the concatenated scores are in the opposite order.
    assert rows(separated) == [
        ["contrastive", "30.0", "70.0", "1.0"],
        ["ntxent", "20.0", "50.0", "2.5"],
        ["triplet", "10.0", "60.0", "2.5"],
    ]
    opposite = [["ntxent", "1.5"], ["triplet", "1.5"], ["contrastive", "3.0"]]
    assert [line[::3] for line in rows(concatenated)] == opposite
    # Friedman's statistic is 12 / (2 · 3 · 4) · (4 + 25 + 25) - 3 · 2 · 4 = 3, with 2 degrees of freedom; Demsar's
    # q is 2.343, and 2.343 · (3 · 4 / (6 · 2)) ** 0.5 = 2.3.
    assert f"Friedman's p = {exp(-1.5):.3f}. Mean ranks that differ by 2.3 or more" in separated
    assert "No significant difference within: contrastive, ntxent, triplet." in separated


def test_what_cannot_be_ranked_is_refused_in_one_line(tmp_path: Path) -> None:
    equal = dict.fromkeys(METHODS, 0.1)
    first, untested = (scored_study(tmp_path, name, equal) for name in ("letters", "begun"))
    for path in untested.glob("jobs/*/*/test/result.json"):
        path.unlink()
    for other, named in {
        first: "another study named 'letters'",
        tmp_path / "nowhere": "nowhere holds no study",
        scored_study(tmp_path, "two", {"contrastive": 0.1, "ntxent": 0.2}): r"in common: contrastive, ntxent$",
        scored_study(tmp_path, "words", equal, {**METHODS, "ntxent": "CircleLoss"}): "NTXentLoss in letters",
        untested: "begun has no test scores yet",
    }.items():
        with pytest.raises(UserError, match=named):
            ranks_tables([first, other])
