"""Scores the held-out classes by retrieval each time that Lightning validates or tests."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from levelfield.metrics import RetrievalMetrics


class RetrievalValidation(Callback):
    """Logs `val/map_at_r` (and `test/...`) from all embeddings of the fold, gathered over processes.

    Every process computes the same scores from the same gathered embeddings, so nothing is averaged over processes.
    How often is the Trainer's `check_val_every_n_epoch`.

    Args:
        metrics: names of `levelfield.metrics.retrieval_metrics`.
    """

    def __init__(self, metrics: tuple[str, ...] = ("map_at_r", "r_precision", "precision_at_1")) -> None:
        self.metrics = metrics
        self._scores: RetrievalMetrics | None = None

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start(trainer.val_dataloaders, pl_module)

    def on_test_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start(trainer.test_dataloaders, pl_module)

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *args: Any
    ) -> None:
        self._update(outputs)

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *args: Any
    ) -> None:
        self._update(outputs)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.sanity_checking:
            return
        self._log(pl_module, "val")

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._log(pl_module, "test")

    def _start(self, dataloader: Any, pl_module: LightningModule) -> None:
        num_samples = len(dataloader.dataset)
        self._scores = RetrievalMetrics(metrics=self.metrics, num_samples=num_samples).to(pl_module.device)

    def _update(self, outputs: dict[str, Tensor]) -> None:
        assert self._scores is not None
        self._scores.update(outputs["embeddings"], outputs["labels"], outputs["index"])

    def _log(self, pl_module: LightningModule, stage: str) -> None:
        assert self._scores is not None
        for name, value in self._scores.compute().items():
            if name in self.metrics:
                pl_module.log(f"{stage}/{name}", float(value), prog_bar=name == "map_at_r", rank_zero_only=False)
        self._scores = None
