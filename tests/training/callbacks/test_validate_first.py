"""The start of a training is validated, and kept where no epoch is better; a stop changes nothing."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from signal_at import SignalAt
from tiny_fit import TINY

from levelfield.analysis.integrity import validation_scores

Run = Callable[..., tuple[int, str, str]]
FIT = Path("fit", "Glyphs-ContrastiveLoss", "0")
SETTINGS = """
trainer:
  callbacks:
    - {{class_path: levelfield.training.callbacks.ValidateFirst}}
    - class_path: lightning.pytorch.callbacks.EarlyStopping
      init_args: {{monitor: val/map_at_r, mode: max, patience: 1}}
    - {{class_path: signal_at.SignalAt, init_args: {{step: {step}, number: {number}}}}}
model: {{loss: ContrastiveLoss, embedding_size: 16, embedder_init: pca, embedder_lr: {rate}, trunk_lr: 0.0}}
"""


def words(folder: Path, rate: float, step: int = -1) -> list[str]:
    file = folder.parent / f"{folder.name}.yaml"
    file.write_text(SETTINGS.format(rate=rate, step=step, number=int(signal.SIGTERM)))
    return ["fit", *TINY, "--config", str(file), "--output", str(folder), "--trainer.max_epochs", "3"]


def test_the_start_is_kept_where_no_epoch_is_better(run: Run, tmp_path: Path) -> None:
    """With rates of 0 every epoch scores what the start does, and the first of equals is kept."""
    code, printed, complaint = run(*words(tmp_path / "still", 0.0))
    assert code == 0, complaint
    assert "before the first step" in printed
    best = torch.load(tmp_path / "still" / FIT / "best.ckpt", weights_only=True)
    assert (best["epoch"], best["global_step"]) == (-1, 0)
    scores = validation_scores(tmp_path / "still" / FIT / "metrics.csv")
    assert len(set(scores.values())) == 1
    # Early stopping compares trained epochs alone: with the start among them it would end after epoch 0.
    assert [*scores] == [-1, 0, 1]
    more = ["--trainer.max_epochs", "1", "--ckpt_path", str(tmp_path / "still" / FIT / "best.ckpt")]
    code, _, complaint = run(*words(tmp_path / "on", 1e-3), *more)
    assert code == 0, complaint
    assert [*validation_scores(tmp_path / "on" / FIT / "metrics.csv")] == [0]


@pytest.mark.parametrize("rate", [0.0, pytest.param(1e-2, marks=pytest.mark.full)])
def test_a_stopped_training_keeps_its_start(
    rate: float, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SignalAt, "sent", True)
    assert run(*words(tmp_path / "undisturbed", rate, step=2))[0] == 0
    monkeypatch.setattr(SignalAt, "sent", False)
    stopped = words(tmp_path / "stopped", rate, step=2)
    assert run(*stopped)[0] == 75
    assert run(*stopped, "--resume")[0] == 0
    one, other = (tmp_path / name / FIT for name in ("stopped", "undisturbed"))
    assert (one / "metrics.csv").read_bytes() == (other / "metrics.csv").read_bytes()
    best = [torch.load(folder / "best.ckpt", weights_only=True) for folder in (one, other)]
    assert best[0]["global_step"] == best[1]["global_step"]
    weights = [each["state_dict"] for each in best]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert [*validation_scores(one / "metrics.csv")].count(-1) == 1
