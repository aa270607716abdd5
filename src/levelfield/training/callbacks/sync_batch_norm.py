"""Batch norm with the statistics of all processes: `--trainer.sync_batchnorm true`."""

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn

from levelfield.core.errors import UserError


class TimmSyncBatchNorm(Callback):
    """Converts batch norm layers as timm does, if the Trainer has `sync_batchnorm=True`.

    torch's conversion, which Lightning calls, drops the activations in timm's batch norm layers.

    Raises:
        UserError: batch norm in training mode on a CPU, where torch cannot synchronize it.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        from timm.layers import convert_sync_batchnorm

        strategy = trainer.strategy
        if getattr(strategy, "_layer_sync", None) is None:
            return
        layers = [part for part in pl_module.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
        if strategy.root_device.type == "cpu" and any(layer.training for layer in layers):
            raise UserError("--trainer.sync_batchnorm true: torch synchronizes batch norm on GPUs only; leave it out")
        convert_sync_batchnorm(pl_module)
        strategy._layer_sync = None  # type: ignore[attr-defined] # or Lightning converts again
