"""Scores the held-out classes by retrieval each time that Lightning validates or tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from levelfield.errors import TrainingFailed
from levelfield.learner import gather_rows
from levelfield.metrics import RetrievalMetrics, embedding_health

HEALTH = ("intra_class_similarity", "inter_class_similarity", "effective_rank")


class RetrievalValidation(Callback):
    """Logs `val/map_at_r` (and `test/...`) from all embeddings of the fold, gathered over processes.

    Every process computes the same scores from the same gathered embeddings, so nothing is averaged over processes.
    Test samples with roles are scored query against gallery. The distance is the learner's. How often is the Trainer's
    `check_val_every_n_epoch`.

    Args:
        metrics: names of `levelfield.metrics.retrieval_metrics`.
        health: whether the mean similarities within and between classes and the effective rank are logged too.

    Raises:
        TrainingFailed: an embedding that is not finite.
    """

    def __init__(
        self, metrics: tuple[str, ...] = ("map_at_r", "r_precision", "precision_at_1"), health: bool = False
    ) -> None:
        self.metrics = metrics
        self.health = health
        self._parts: list[dict[str, Tensor]] = []
        self._scores: RetrievalMetrics | None = None

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start(trainer.val_dataloaders, pl_module)

    def on_test_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        dataset = trainer.test_dataloaders.dataset  # type: ignore[union-attr]
        self._start(trainer.test_dataloaders, pl_module, getattr(dataset, "is_query", None))

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

    def _start(self, dataloader: Any, pl_module: LightningModule, is_query: np.ndarray | None = None) -> None:
        num_samples = len(dataloader.dataset)
        self._parts = []
        distance = getattr(pl_module, "distance", "cosine")
        scores = RetrievalMetrics(metrics=self.metrics, num_samples=num_samples, distance=distance, is_query=is_query)
        self._scores = scores.to(pl_module.device)

    def _update(self, outputs: dict[str, Tensor]) -> None:
        assert self._scores is not None
        if not torch.isfinite(outputs["embeddings"]).all():
            raise TrainingFailed(
                "the embeddings are not finite: lower the learning rates (--model.trunk_lr, --model.embedder_lr)"
            )
        self._scores.update(outputs["embeddings"], outputs["labels"], outputs["index"])
        if self.health:
            self._parts.append(outputs)

    def _log(self, pl_module: LightningModule, stage: str) -> None:
        assert self._scores is not None
        for name, value in self._scores.compute().items():
            if name in self.metrics:
                pl_module.log(f"{stage}/{name}", float(value), prog_bar=name == "map_at_r", rank_zero_only=False)
        if self.health:
            self._log_health(pl_module, stage)
        self._scores, self._parts = None, []

    def _log_health(self, pl_module: LightningModule, stage: str) -> None:
        names = ("embeddings", "labels", "index")
        embeddings, labels, index = (gather_rows(pl_module, torch.cat([p[n] for p in self._parts])) for n in names)
        once = torch.full((int(index.max()) + 1,), -1, device=index.device)
        once[index] = torch.arange(len(index), device=index.device)  # one of a sample's repeats
        once = once[once >= 0]
        health = embedding_health(embeddings[once], labels[once])
        for name in HEALTH:
            pl_module.log(f"{stage}/{name}", float(getattr(health, name)), rank_zero_only=False)
