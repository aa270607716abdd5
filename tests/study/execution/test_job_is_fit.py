"""One job of a study is what `levelfield fit --config` does, though the study's jobs share what is the same for all."""

import random
from pathlib import Path

import pytest
import torch
import yaml
from toy_study import run_study

from levelfield.study.definition.study_file import load_spec
from levelfield.study.integrity import validation_scores
from levelfield.study.record import StudyRecord

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture(scope="module")
def on_features(toy_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study on the features of a frozen trunk: its jobs share trunk and list of samples."""
    folder = tmp_path_factory.mktemp("on_features")
    content = yaml.safe_load(toy_file.read_text())
    content["base"][0]["model"]["freeze_trunk"] = True
    content["base"][0]["data"]["features"] = True
    content["methods"] = {"arcface": content["methods"]["arcface"]}
    content |= {"runs": 1, "spaces": {}, "search": {}}
    (folder / "study.yaml").write_text(yaml.safe_dump(content))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEVELFIELD_CACHE", str(folder / "cache"))
        run_study(folder / "study", load_spec(folder / "study.yaml"))
    return folder / "study"


@pytest.mark.parametrize("study", ["finished", "on_features"])
def test_a_job_taken_at_random_is_a_fit(
    study: str, request: pytest.FixtureRequest, run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = request.getfixturevalue(study)
    monkeypatch.setenv("LEVELFIELD_CACHE", str(tmp_path / "another cache"))
    record = StudyRecord.begun(folder)
    job = random.choice([job for job in record.state.results if job.stage == "run" and job.method != "pretrained"])
    config, result = folder / job.path / "config.yaml", record.state.results[job]
    torch.rand(7)  # whatever this process drew before
    code, _, complaint = run("fit", "--config", config, "--output", tmp_path, "--name", "it")
    assert code == 0, complaint
    fitted = tmp_path / "fit" / "it" / "0"
    scores = validation_scores(fitted / "metrics.csv")
    assert scores[result["best_epoch"]] == max(scores.values()) == result["validation"]["map_at_r"], str(job)
    assert (fitted / "metrics.csv").read_bytes() == (folder / job.path / "metrics.csv").read_bytes()
    ours, theirs = (torch.load(file, weights_only=True) for file in (folder / job.checkpoint, fitted / "best.ckpt"))
    assert {"embedder.linear.weight"} <= ours["state_dict"].keys()
    for name, tensor in ours["state_dict"].items():
        assert torch.equal(tensor, theirs["state_dict"][name]), f"{job}: {name}"
    assert result["seed"] == yaml.safe_load(config.read_text())["seed_everything"]
