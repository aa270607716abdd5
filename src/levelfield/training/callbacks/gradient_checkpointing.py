"""Activation checkpointing of the trunk."""

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from levelfield.core.errors import UserError
from levelfield.models.layers import networks
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


def recompute_activations(trunk: nn.Module, freeze_batch_norm: bool = True) -> None:
    """Make a trunk keep only the inputs of its blocks; raises UserError if it cannot."""
    if not freeze_batch_norm and any(isinstance(part, _BatchNorm) for part in trunk.modules()):
        raise UserError(
            "GradientCheckpointing goes through batch norm twice, which would count each batch twice: give "
            "--model.freeze_batch_norm true, or leave it out"
        )
    found = [network for _, network in networks(trunk)]
    try:
        for network in found:
            if hasattr(network, "set_grad_checkpointing"):
                network.set_grad_checkpointing(True)
            elif hasattr(network, "activation_checkpointing_enable"):  # the newer name of the next method
                network.activation_checkpointing_enable()
            else:
                network.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    except (AssertionError, ValueError, AttributeError):
        found = []
    if not found:
        raise UserError(
            f"GradientCheckpointing: {type(trunk).__name__} has no network that can do it; GradientCaching saves "
            "memory with any"
        )
