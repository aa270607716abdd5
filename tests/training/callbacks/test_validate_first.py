"""The start of a training is validated, and kept where no epoch is better."""

from collections.abc import Callable
from pathlib import Path

import torch
from tiny_fit import TINY

from levelfield.analysis.integrity import validation_scores

Run = Callable[..., tuple[int, str, str]]
FIT = Path("fit", "Glyphs-ContrastiveLoss", "0")
SETTINGS = """
trainer:
  callbacks:
    - {class_path: levelfield.training.callbacks.ValidateFirst}
    - class_path: lightning.pytorch.callbacks.EarlyStopping
      init_args: {monitor: val/map_at_r, mode: max, patience: 1}
model: {loss: ContrastiveLoss, embedding_size: 16, embedder_init: pca, embedder_lr: 0.0, trunk_lr: 0.0}
"""


def words(folder: Path) -> list[str]:
    file = folder.parent / f"{folder.name}.yaml"
    file.write_text(SETTINGS)
    return ["fit", *TINY, "--config", str(file), "--output", str(folder), "--trainer.max_epochs", "3"]


def test_the_start_is_kept_where_no_epoch_is_better(run: Run, tmp_path: Path) -> None:
    """With rates of 0 every epoch scores what the start does, and the first of equals is kept."""
    code, printed, complaint = run(*words(tmp_path / "still"))
    assert code == 0, complaint
    assert "before the first step" in printed
    best = torch.load(tmp_path / "still" / FIT / "best.ckpt", weights_only=True)
    assert (best["epoch"], best["global_step"]) == (-1, 0)
    scores = validation_scores(tmp_path / "still" / FIT / "metrics.csv")
    assert len(set(scores.values())) == 1
    # Early stopping compares trained epochs alone: with the start among them it would end after epoch 0.
    assert [*scores] == [-1, 0, 1]
    more = ["--trainer.max_epochs", "1", "--ckpt_path", str(tmp_path / "still" / FIT / "best.ckpt")]
    code, _, complaint = run(*words(tmp_path / "on"), *more)
    assert code == 0, complaint
    assert [*validation_scores(tmp_path / "on" / FIT / "metrics.csv")] == [-1, 0]
