"""One record is handed down: read once, brought up to date where others have worked, and made in one place."""

import ast
import shutil
from pathlib import Path

import pytest
from tiny_fit import REPOSITORY

from levelfield.errors import UserError
from levelfield.study.jobs import RESULT, Job
from levelfield.study.record import StudyRecord

PACKAGE = REPOSITORY / "src" / "levelfield"
NEW = {"core", "study2"}  # the new engine has a folder of its own
SOURCES = {path: path.read_text() for path in PACKAGE.rglob("*.py") if not NEW & set(path.parts)}


def test_the_state_is_read_once_and_brought_up_to_date(finished: Path, tmp_path: Path) -> None:
    folder, job = Path(shutil.copytree(finished, tmp_path / "toy")), Job("arcface", "run", 1, 0)
    path = folder / job.path / RESULT
    whole = path.read_text()
    path.unlink()
    record = StudyRecord.begun(folder)
    assert record.state is record.state
    assert record.state.to_do == [job]
    path.write_text(whole)
    assert record.state.to_do == [job], "until it is asked for"
    assert record.refresh() == [job]
    assert record.refresh() == record.state.to_do == []
    path.unlink()
    assert record.refresh() == record.state.to_do == [], "what was done stays done"
    assert record.read_again().to_do == record.state.to_do == [job]
    path.write_text(whole[:-9])
    with pytest.raises(UserError, match=r"arcface/run1/fold0/result\.json is damaged"):
        record.read_again()
    with pytest.raises(UserError, match="holds no study; begin it"):
        StudyRecord.begun(tmp_path)


def test_a_folder_and_a_definition_meet_in_the_record_alone() -> None:
    both = []
    for path, source in SOURCES.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef):
                kinds = {ast.unparse(each.annotation) for each in node.args.args if each.annotation is not None}
                if {"Path", "StudySpec"} <= kinds:
                    both.append(f"{path.stem}.{node.name}")
    assert both == ["record.__init__"]


@pytest.mark.parametrize("once", ["StudyState(", '"ledger.jsonl"', '"results.csv"', '"summary.csv"', '"study.yaml"'])
def test_each_is_named_in_one_place(once: str) -> None:
    assert sum(source.count(once) for source in SOURCES.values()) == 1
