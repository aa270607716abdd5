"""How the trunk trains: with less memory, with batch norm over all processes, or after the head."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from levelfield.core.errors import UserError, refuse_below
from levelfield.models.layers import networks


class GradientCheckpointing(Callback):
    """Keeps only the inputs of the trunk's blocks, to save memory; one extra forward pass, the same gradients.

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
        raise UserError("GradientCheckpointing goes through batch norm twice: give --model.freeze_batch_norm true")
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
        raise UserError(f"GradientCheckpointing: {type(trunk).__name__} cannot do it; GradientCaching can with any")


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
        layers = [part for part in pl_module.modules() if isinstance(part, _BatchNorm)]
        if strategy.root_device.type == "cpu" and any(layer.training for layer in layers):
            raise UserError("--trainer.sync_batchnorm true: torch synchronizes batch norm on GPUs only; leave it out")
        convert_sync_batchnorm(pl_module)
        strategy._layer_sync = None  # type: ignore[attr-defined] # or Lightning converts again


class HeadFirst(Callback):
    """Trains only embedder and loss in the first `epochs` (Zhai and Wu 2019, section 4.1).

    Then all weights train: the optimizer resets its moments, the schedule continues. Until then, the gradients of the
    trunk are computed and dropped, because DDP waits for each gradient.

    Raises:
        UserError: fewer than 1 epoch, or a module without trunk.
    """

    def __init__(self, epochs: int = 1) -> None:
        refuse_below(1, "trainer.callbacks", epochs=epochs)
        self.epochs = epochs

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, *args: Any
    ) -> None:
        if trainer.current_epoch == self.epochs and batch_idx == 0:
            for optimizer in trainer.optimizers:
                optimizer.state.clear()

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        if trainer.current_epoch < self.epochs:
            for parameter in trunk_of(pl_module, self).parameters():
                parameter.grad = None  # no step, no weight decay, no momentum


def trunk_of(module: nn.Module, callback: object) -> Any:
    """The trunk that a callback changes.

    Raises:
        UserError: the module, perhaps a plain LightningModule, has none.
    """
    if not isinstance(trunk := getattr(module, "trunk", None), nn.Module):
        raise UserError(f"--trainer.callbacks {type(callback).__name__} needs self.trunk in {type(module).__name__}")
    return trunk
