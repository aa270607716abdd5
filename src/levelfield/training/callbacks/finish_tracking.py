"""Ends a W&B run with its training, however that ends, so that the process' next training is a run of its own."""

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import WandbLogger


class FinishTracking(Callback):
    """Finishes the W&B runs of a Trainer when a fit ends."""

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._finish(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._finish(trainer)

    def _finish(self, trainer: Trainer) -> None:
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger) and trainer.is_global_zero:
                logger.experiment.finish()
