"""The study that a person in a notebook holds: what it says is what the command prints and the files hold."""

import csv
import shutil
from pathlib import Path

import pandas as pd
import pytest
from refused import refuses

import levelfield
from levelfield import Study
from levelfield.cli.main import run as command_line


@pytest.mark.slow
def test_it_says_what_the_command_prints_and_what_the_files_hold(copy: Path, capsys) -> None:
    for command in ("report", "status"):
        assert command_line("study", [command, str(copy)]) == 0
    printed, study = capsys.readouterr().out, Study(copy)
    assert printed.startswith(str(study.table()))
    assert printed.endswith("".join(f"{line}\n" for line in study.status()))
    assert study.verify() == []
    assert str(study.report()) in printed
    for frame, name in ((study.results, "results.csv"), (study.summary, "summary.csv")):
        rows = [*csv.DictReader((copy / name).read_text().splitlines())]
        assert list(frame) == list(rows[0])
        for column in frame:
            numbers = column in ("trial", "run", "fold", "value", "mean", "ci95", "n")
            for cell, text in zip(frame[column], [row[column] for row in rows], strict=True):
                assert (cell == (float(text) if numbers else text)) if text else pd.isna(cell), (name, column)


@pytest.mark.slow
def test_a_study_runs_and_goes_on_in_python(toy_file: Path, tmp_path: Path) -> None:
    options = {"runs": 1, "search.trials": 0, "trainer.max_epochs": 1}
    study = Study(toy_file, output=tmp_path / "out", options=options, add_methods=["levelfield.losses.SupConLoss"])
    refuses("levelfield study run", study.table)
    assert study.run() is study
    assert {"contrastive", "arcface", "supcon"} < set(study.results.method)
    assert "SupCon" in str(study.table())
    (tmp_path / "out/jobs/arcface/run0/test/result.json").unlink()
    assert "arcface" not in set(study.summary.method), "it reads the folder as it is"
    assert set(Study(tmp_path / "out").run().summary.method) == set(study.summary.method) > {"arcface"}


def test_a_mistake_is_one_line(toy_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "configs/study").mkdir(parents=True)
    shutil.copy(toy_file, tmp_path / "configs/study")
    monkeypatch.chdir(tmp_path)
    for study, arguments, named in (
        ("tyo", {}, "did you mean 'toy'"),
        ("toy", {"options": {"rusn": 3}}, "did you mean 'runs'"),
        ("nowhere/toy", {"output": "x"}, "'nowhere/toy'"),
    ):
        refuses(named, Study, study, **arguments)
    study = Study("toy", output=tmp_path / "out")
    for arguments, named in (
        ({"workers": 2, "executor": "loca"}, "--executor loca.*local"),
        ({"workers": 2, "options": {"adress": "auto"}}, "executor.adress"),
    ):
        refuses(named, study.run, **arguments)
    assert not (tmp_path / "out").exists()


def test_the_package_shows_its_face_and_loads_it_when_used() -> None:
    """tests/cli/test_cli.py shows that commands load nothing before."""
    assert {*levelfield.__all__} <= {*dir(levelfield)}
    assert None not in [getattr(levelfield, name) for name in levelfield.__all__]
    assert levelfield.losses.ArcFaceLoss
    assert not hasattr(levelfield, "no_such_name")
