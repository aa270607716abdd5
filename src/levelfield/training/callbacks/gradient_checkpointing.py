"""Activation checkpointing of the trunk."""

from lightning.pytorch import Callback, LightningModule, Trainer

from levelfield.models.layers import recompute_activations
from levelfield.training.checks import trunk_of


class GradientCheckpointing(Callback):
    """Recomputes activations of the trunk to save memory; one extra forward pass, the same gradients.

    It keeps only the inputs of the trunk's blocks.
    Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", arXiv:1604.06174.

    Raises:
        UserError: the trunk's network does not support it, or has batch norm in training mode.
    """

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trunk = trunk_of(pl_module, self)
        if any(weight.requires_grad for weight in trunk.parameters()):
            recompute_activations(trunk, getattr(pl_module, "freeze_batch_norm", False))
