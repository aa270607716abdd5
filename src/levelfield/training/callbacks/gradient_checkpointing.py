"""Activation checkpointing of the trunk."""

from lightning.pytorch import Callback, LightningModule, Trainer

from levelfield.models.layers import recompute_activations


class GradientCheckpointing(Callback):
    """Keeps only what goes into the trunk's blocks, and computes the rest again in the backward pass.

    The gradients are the same; a step makes one more pass through the blocks.
    Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", arXiv:1604.06174.

    Raises:
        UserError: the trunk's network cannot do it, or has batch norm that learns.
    """

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if any(weight.requires_grad for weight in pl_module.trunk.parameters()):  # type: ignore[union-attr]
            recompute_activations(pl_module.trunk, getattr(pl_module, "freeze_batch_norm", False))  # type: ignore[arg-type]
