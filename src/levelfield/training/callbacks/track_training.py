"""Log settings, statistics of validations and the best score to W&B, TensorBoard and other trackers."""

from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger, WandbLogger
from torch import Tensor

from levelfield.metrics import embedding_health
from levelfield.training.batches import Batch
from levelfield.training.callbacks.best_epoch import best_checkpoints
from levelfield.training.callbacks.retrieval_validation import embeddings_of, embeds_some

# Number of validation samples for the statistics: more give the same numbers.
MOST_SAMPLES = 20_000
HEALTH = ("intra_class_similarity", "inter_class_similarity", "effective_rank")


class TrackTraining(Callback):
    """Logs statistics of each validation and the best score (docs/tutorial_gpus.md) to loggers except `CSVLogger`.

    It does not change the training. The statistics are those of the first loader on the first process.

    Args:
        settings: All settings of the training, which it logs; it then also ends the W&B run, so that the next training
            has its own.
    """

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        self.settings = None if settings is None else dict(settings)
        self._validated: list[tuple[Tensor, Tensor]] = []

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self.settings is not None:
            for logger in trainer.loggers:
                logger.log_hyperparams(self.settings)

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._validated = []

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if dataloader_idx == 0 and _trackers(trainer) and not embeds_some(trainer):
            self._validated.append((embeddings_of(outputs), Batch.read(batch).labels))

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._validated:
            parts = [torch.cat(part) for part in zip(*self._validated, strict=True)]
            embeddings, labels = (part[:: -(-len(part) // MOST_SAMPLES)] for part in parts)  # evenly spaced
            self._validated = []
            if 1 < len(labels.unique()) < len(labels) and torch.isfinite(embeddings).all():
                health = embedding_health(embeddings, labels)
                _log(trainer, {f"val/{name}": getattr(health, name) for name in HEALTH})

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for kept in best_checkpoints(trainer)[:1]:
            _log(trainer, {f"best/{kept.monitor.removeprefix('val/')}": float(kept.best_model_score)})

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        for logger in trainer.loggers if self.settings is not None else ():
            if isinstance(logger, WandbLogger) and trainer.is_global_zero and logger.version:  # it has begun
                logger.experiment.finish()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.teardown(trainer, pl_module, "fit")


def _trackers(trainer: Trainer) -> list[Any]:
    return [logger for logger in trainer.loggers if not isinstance(logger, CSVLogger)]


def _log(trainer: Trainer, numbers: dict[str, float]) -> None:
    """Log at the last finished step, counted from 0, as Lightning does."""
    for logger in _trackers(trainer):
        logger.log_metrics(numbers, step=max(trainer.global_step - 1, 0))
