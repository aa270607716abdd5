"""What a training step does beside its loss: seeds of its draws, a look at the losses now and then, a log if heard."""

from collections.abc import Mapping

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from levelfield.errors import TrainingFailed
from levelfield.seeds import seed_of
from levelfield.training.objective import TRAIN_LOSS


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

    def tell(self, learner: LightningModule, losses: Mapping[str, Tensor], batch_size: int) -> None:
        """Keep the loss of a step, and log what somebody hears.

        Args:
            losses: by their names in the logs, `TRAIN_LOSS` among them.

        Raises:
            TrainingFailed: a step at which all since the last look are looked at, and one is not finite.
        """
        trainer, loss = learner.trainer, losses[TRAIN_LOSS]
        self._losses.append((learner.global_step, loss.detach()))
        every = trainer.log_every_n_steps  # type: ignore[attr-defined]
        if every and learner.global_step % every == 0:
            self.check()
            trainer.progress_bar_metrics[TRAIN_LOSS] = loss.item()  # prog_bar=True below reads it at each step
        if is_heard(trainer):
            learner.log_dict(losses, batch_size=batch_size)

    def check(self) -> None:
        """Raises TrainingFailed for the first loss since the last look that is not finite."""
        losses, self._losses = self._losses, []
        if losses and not torch.isfinite(torch.stack([loss for _, loss in losses])).all():
            step, loss = next((step, loss) for step, loss in losses if not torch.isfinite(loss))
            raise TrainingFailed(
                f"the loss is {loss.item()} at step {step}: lower the learning rates "
                "(--model.trunk_lr, --model.loss_lr) or the loss' scale"
            )
