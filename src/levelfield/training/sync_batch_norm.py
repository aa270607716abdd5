"""Batch norm with the statistics of all processes: `--trainer.sync_batchnorm true`."""

from lightning.pytorch import LightningModule
from timm.layers import convert_sync_batchnorm

from levelfield.errors import UserError


def synchronize_batch_norm(learner: LightningModule) -> None:
    """Convert the batch norm layers of a learner, if its Trainer has `sync_batchnorm=True`.

    torch's conversion, which Lightning calls, drops the activations in timm's batch norm layers. timm's keeps them.

    Args:
        learner: a `MetricLearner` whose Trainer begins a stage.

    Raises:
        UserError: batch norm learns on a CPU, where torch cannot synchronize it.
    """
    strategy = learner.trainer.strategy
    if getattr(strategy, "_layer_sync", None) is None:
        return
    if strategy.root_device.type == "cpu" and not learner.freeze_batch_norm:
        raise UserError("--trainer.sync_batchnorm true: torch synchronizes batch norm on GPUs only; leave it out")
    convert_sync_batchnorm(learner)
    strategy._layer_sync = None  # type: ignore[attr-defined] # or Lightning converts again
