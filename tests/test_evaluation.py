"""`validate` and `predict` on checkpoints that something else than `fit` made."""

import json
import shutil

import pytest


@pytest.mark.parametrize("command", ["validate", "predict"])
def test_a_checkpoint_of_a_study_needs_no_option(command, finished, run, tmp_path):
    job = finished / "jobs" / "arcface" / "run1" / "fold1"
    shutil.copy(job / "best.ckpt", tmp_path)
    code, printed, complaint = run(command, "--ckpt_path", tmp_path / "best.ckpt")
    assert code == 0, complaint
    if command == "validate":
        score = json.loads((job / "result.json").read_text())["validation"]["map_at_r"]
        assert f"{score:.6f}"[:6] in printed
    code, _, complaint = run(command, "--ckpt_path", tmp_path / "best.ckpt", "--model.seed", "1")
    assert code == 2
    assert "--model.seed 1 contradicts" in complaint
