"""Ranks over several studies: which methods are ranked, and by what."""

import json
import re
from collections.abc import Callable
from math import exp
from pathlib import Path

import pytest
from toy_study import TOY, evaluated

from levelfield.errors import UserError
from levelfield.report.ranks_table import ranks_tables
from levelfield.study.folder import StudyFolder
from levelfield.study.rows import load_spec

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


def test_each_studys_evaluations_are_counted(tmp_path: Path) -> None:
    studies = [scored_study(tmp_path, name, dict.fromkeys(METHODS, 0.1)) for name in ("letters", "words")]
    evaluated(studies[1], by="levelfield test", reason="a bug")
    first, last = ranks_tables(studies)
    assert last.sentences[-2:] == [
        "letters: The test classes were evaluated once.",
        "words: The test classes were evaluated 2 times.",
    ]
    assert not any("evaluated" in sentence for sentence in first.sentences), "once is enough"


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


def test_only_kinds_of_embeddings_that_all_have_are_ranked(tmp_path: Path) -> None:
    folders = [scored_study(tmp_path, name, dict.fromkeys(METHODS, 0.1)) for name in ("letters", "words")]
    for path in folders[1].rglob("test/result.json"):
        result = json.loads(path.read_text())
        path.write_text(json.dumps({**result, "concatenated": {}}))
    (table,) = ranks_tables(folders)
    assert "separated" in table.title
