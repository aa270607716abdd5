"""A job on several devices is a command of its own under its slot, with the result and the errors of any job."""

import json
from pathlib import Path

import pytest
import torch
from study_engine import SMALL, run_file, small_study, tables

from levelfield.errors import UserError
from levelfield.study.jobs import Job

TWO = SMALL.replace("  mine: {model: {loss: my_loss.Mine}}\n", "").replace(
    "accelerator: cpu,", "accelerator: cpu, devices: 2, strategy: ddp,"
)
DERIVED = (
    TWO.replace(
        "{model: {loss: ContrastiveLoss}}",
        "{model: {loss: ContrastiveLoss, embedder: levelfield.models.IdentityEmbedder, embedding_size: 96}}",
    )
    + "derived: {half: {of: contrastive, alpha: 0.5}}\n"
)


@pytest.mark.slow
@pytest.mark.processes
def test_a_job_on_two_devices_is_a_command_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "0")  # a launcher's variables reach no group
    study = run_file(small_study(tmp_path, text=DERIVED), tmp_path / "two")
    assert study.checkpoint(Job("half", "run", 0, 0)).is_file()
    for fold in (0, 1):
        result = json.loads((study.folder / f"jobs/contrastive/run0/fold{fold}/result.json").read_text())
        assert result["sources"]["levelfield/losses/contrastive.py"]
        assert result["validation"]["map_at_r"] > 0
    assert torch.load(study.folder / "jobs/contrastive/run0/fold0/best.ckpt", weights_only=True)["global_step"] == 2
    before = tables(study.folder)
    (study.folder / "jobs/contrastive/run0/fold0/result.json").unlink()
    again = run_file(tmp_path / "small.yaml", tmp_path / "two")
    assert tables(again.folder) == before


@pytest.mark.full
@pytest.mark.processes
def test_what_ends_a_job_on_two_devices_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    text = SMALL.replace("accelerator: cpu,", "accelerator: cpu, devices: 2, strategy: ddp,")
    text = text.replace("  contrastive: {model: {loss: ContrastiveLoss}}\n", "").replace("folds: 2", "folds: 1")
    before = "if not embeddings.is_leaf:\n    raise KeyError('on two devices')"
    with pytest.raises(UserError, match="KeyError"):
        run_file(small_study(tmp_path, before, text), tmp_path / "raises")
    before = "if not embeddings.is_leaf:\n    import os; os.kill(os.getpid(), 9)"
    with pytest.raises(UserError, match=r"mine run 0 fold 0: .*\b3\b"):
        run_file(small_study(tmp_path, before, text), tmp_path / "dies")
