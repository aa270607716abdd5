"""What a training step does beside its loss: seeds of its draws, a look at the losses now and then, a log if heard."""

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from levelfield.errors import TrainingFailed, UserError
from levelfield.seeds import seed_of

TRAIN_LOSS = "train/loss"


def seed_draws(device: torch.device, *key: str | int) -> None:
    """Seed what draws on a device, by `seed_of(*key)`.

    `torch.manual_seed` would keep a traceback for each kind of accelerator that is not there, in case that it comes: a
    quarter of a head's step, and memory that never ends.
    """
    if device.type not in ("cpu", "cuda"):
        torch.manual_seed(seed_of(*key))
        return
    torch.default_generator.manual_seed(seed_of(*key))
    if device.type == "cuda":
        torch.cuda.manual_seed_all(seed_of(*key))


def is_heard(trainer: Trainer) -> bool:
    """Whether anybody gets to see what this step logs: a logger, a callback where training pauses.

    To log takes as long as the backward pass of a head.
    """
    return (
        trainer._logger_connector.should_update_logs
        or trainer.is_last_batch
        or 0 <= trainer.max_steps <= trainer.global_step + 1
        or trainer.val_check_batch != trainer.num_training_batches
    )


class UncheckedLosses:
    """The losses since the last look at them, with their steps.

    They are not looked at each by itself: on a GPU each look waits for the step.
    """

    def __init__(self) -> None:
        self._losses: list[tuple[int, Tensor]] = []

    def add(self, step: int, loss: Tensor, name: str) -> None:
        """Keep a loss for the next look.

        Args:
            name: The class of what gave it.

        Raises:
            UserError: it is not one number that has a gradient, for one's own code may give anything.
        """
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            given = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
            raise UserError(
                f"--model.loss {name} gave {given}: let its forward return one number, a tensor of shape ()"
            )
        if not loss.requires_grad and torch.is_grad_enabled():
            raise UserError(
                f"--model.loss {name} gave a number without a gradient: compute it from the embeddings by operations "
                "of torch, without detach(), item() and no_grad()"
            )
        self._losses.append((step, loss.detach()))

    def check(self) -> None:
        """Raises TrainingFailed for the first loss since the last look that is not finite."""
        losses, self._losses = self._losses, []
        if losses and not torch.isfinite(torch.stack([loss for _, loss in losses])).all():
            step, loss = next((step, loss) for step, loss in losses if not torch.isfinite(loss))
            raise TrainingFailed(
                f"the loss is {loss.item()} at step {step}: lower the learning rates "
                "(--model.trunk_lr, --model.loss_lr) or the loss' scale"
            )
