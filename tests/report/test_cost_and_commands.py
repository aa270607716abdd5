"""Cost and commands of the page: sums of the results' seconds, and commands that the parsers take."""

import json
import shutil
from pathlib import Path

import pytest

from levelfield.analysis.results import collect_rows
from levelfield.report.cost_and_commands import commands, costs
from levelfield.study.folder import StudyFolder
from levelfield.study.rows import load_spec
from levelfield.study.spec import StudySpec
from levelfield.study.study_file import find_study


@pytest.fixture
def study(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "study"))


def test_time_is_summed_by_method_and_stage(study: Path) -> None:
    for path in study.glob("jobs/*/*/fold*/result.json"):
        result = json.loads(path.read_text())
        seconds = {"pretrained": 9.0, "contrastive": 120.0, "arcface": 60.0}[result["method"]]
        path.write_text(json.dumps({**result, "seconds": seconds}))
    rows = {row["method"]: row for row in costs(StudyFolder.begun(study))}
    assert list(rows) == ["pretrained", "contrastive", "arcface", "all"]
    # 3 trials and 2 runs of 2 folds each; the baseline has one run.
    assert [rows[method]["trainings"] for method in rows] == [2, 10, 10, 22]
    assert (rows["contrastive"]["search"], rows["contrastive"]["runs"]) == ("12 min", "8 min")
    assert rows["arcface"]["each"] == "60.0 s"
    assert rows["all"]["hours"] == f"{(18 + 1200 + 600) / 3600:.2f}"


def test_a_study_of_this_name_in_the_working_directory_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a stranger, it would import what it names."""
    for name in ("study/smoke.yaml", "data/glyphs.yaml", "method/contrastive.yaml"):
        planted = tmp_path / "configs" / name
        planted.parent.mkdir(parents=True)
        planted.write_text("name: smoke\nmodel: {learner: no_such_module.Learner}\n")
    spec = load_spec(find_study("smoke"))
    monkeypatch.chdir(tmp_path)
    assert "levelfield study run smoke.yaml" in words_of(spec, tmp_path)


def test_commands_name_the_versions_and_a_shipped_study_alone(study: Path) -> None:
    record = StudyFolder.begun(study)
    words = {each["what"]: each["words"] for each in commands(record, collect_rows(record))}
    assert not [each for each in words.values() if "study run" in each], "the toy is shipped nowhere"
    libraries = json.loads((study / "jobs/arcface/run0/fold0/result.json").read_text())["provenance"]["libraries"]
    assert f"torch=={libraries['torch']}" in words["Install the same versions"]
    training = next(value for key, value in words.items() if key.startswith("Repeat one training"))
    assert (study / training.split("outputs/study/")[1]).is_file()
    shipped = StudyFolder(study / "not_begun", load_spec(find_study("smoke")))
    assert "levelfield study run smoke.yaml" in [each["words"] for each in commands(shipped, [])]


@pytest.mark.parametrize("dataset", [{"class_path": "Banking77"}, "Banking77", "a_module_elsewhere.Letters"])
def test_the_whole_study_anew_asks_for_the_folder_of_data_that_lie_in_one(
    dataset: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spec = load_spec(find_study("laptop/banking77"))
    assert "levelfield study run laptop/banking77.yaml --data.root DIR" in words_of(spec, tmp_path)
    for config in spec.methods.values():
        config["data"]["dataset"] = dataset
    monkeypatch.setattr("levelfield.report.cost_and_commands._shipped_as", lambda spec: "study.yaml")
    root = " --data.root DIR" * (dataset != "a_module_elsewhere.Letters")
    assert f"levelfield study run study.yaml{root}" in words_of(spec, tmp_path)


def words_of(spec: StudySpec, folder: Path) -> list[str]:
    return [each["words"] for each in commands(StudyFolder(folder, spec), [])]
