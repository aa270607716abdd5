"""The warm-up of Zhai & Wu: the first epochs train only the new weights.

At the top of the repository:
levelfield fit ... --config protocol/zhai_wu --trainer.callbacks+ papers.zhai_wu.head_first.HeadFirst
"""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.optim import Optimizer

from levelfield.core.errors import UserError
from levelfield.training.callbacks.trunk_compute import trunk_of


class HeadFirst(Callback):
    """Trains only embedder and loss in the first `epochs` (Zhai and Wu 2019, section 4.1).

    Then all weights train: the optimizer resets its moments, the schedule continues. Until then, the gradients of the
    trunk are computed and dropped, because DDP waits for each gradient.

    Args:
        epochs: number of epochs without the trunk.

    Raises:
        UserError: fewer than 1 epoch, or a module without trunk.
    """

    def __init__(self, epochs: int = 1) -> None:
        if epochs < 1:
            raise UserError(f"HeadFirst.epochs is {epochs}: give 1 or more, or leave the callback out")
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
