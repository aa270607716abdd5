"""Log the results of training steps, and end a training whose loss is not finite."""

from collections.abc import Iterator
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from levelfield.core.errors import TrainingFailed
from levelfield.training.batches import broken_samples, read_known

TRAIN_LOSS = "train/loss"


class LogLosses(Callback):
    """Logs `train/loss` and every other number of the dictionary that any module's `training_step` returns.

    Of the module's `loss` it logs the terms in the attribute `terms`, and each weight that is a single number, such as
    a learnt temperature. A name without a slash gets the prefix `train/`.

    It logs only in steps whose logs are read, because logging takes as long as the backward pass of a head. It checks
    the losses every `log_every_n_steps` steps, before a validation and at the end of an epoch: on a GPU, each check
    waits for the step.

    Raises:
        TrainingFailed: a loss since the last check is not finite.
    """

    def __init__(self) -> None:
        self._step = 0
        self._unchecked: list[tuple[int, Tensor]] = []

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        self._step = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        returned = {"loss": outputs} if isinstance(outputs, Tensor) else dict(outputs or {})
        if not isinstance(loss := returned.pop("loss", None), Tensor):
            return  # Lightning skipped the step, or the module has manual optimization
        loss = loss.detach()
        if pl_module.automatic_optimization:  # Lightning has divided by it
            loss = loss * trainer.accumulate_grad_batches
        self._unchecked.append((self._step, loss))
        every = trainer.log_every_n_steps  # type: ignore[attr-defined]
        if every and self._step % every == 0:
            self._check(batch)
            trainer.progress_bar_metrics[TRAIN_LOSS] = loss.item()  # log(prog_bar=True) would read it at each step
        if _is_read(trainer):
            named = {**dict(_of_loss(getattr(pl_module, "loss", None))), **returned}
            pl_module.log_dict({TRAIN_LOSS: loss, **_numbers(named)}, batch_size=1)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._check()

    on_train_epoch_end = on_validation_start

    def _check(self, batch: Any = None) -> None:
        losses, self._unchecked = self._unchecked, []
        if losses and not torch.isfinite(torch.stack([loss for _, loss in losses])).all():
            step, loss = next((step, loss) for step, loss in losses if not torch.isfinite(loss))
            remedy = "lower the learning rates (--model.trunk_lr, --model.loss_lr) or the loss' scale"
            if step == 0:  # no rate has had an effect
                remedy = broken_samples(read_known(batch)) or "look at the samples, the initial weights and the loss"
            raise TrainingFailed(f"the loss is {loss.item()} at step {step}: {remedy}")


def _of_loss(loss: Any) -> Iterator[tuple[str, Any]]:
    """The terms of a loss, and its weights that are single numbers, including those of inner losses."""
    if not isinstance(loss, nn.Module):
        return
    for name, part in loss.named_modules():
        for term, value in getattr(part, "terms", {}).items():
            yield f"{name}.{term}".lstrip("."), value
    yield from ((name, weight) for name, weight in loss.named_parameters() if weight.requires_grad)


def _numbers(named: dict[str, Any]) -> dict[str, Tensor | float]:
    """The single numbers, by their logged names."""
    found: dict[str, Tensor | float] = {}
    for name, value in named.items():
        if isinstance(value, Tensor) and value.numel() == 1:
            found[name if "/" in name else f"train/{name}"] = value.detach().reshape(())
        elif type(value) in (int, float):
            found[name if "/" in name else f"train/{name}"] = float(value)
    return found


def _is_read(trainer: Trainer) -> bool:
    """Whether this step's logs are read: by a logger, or by a callback when the training pauses."""
    return (
        trainer._logger_connector.should_update_logs
        or trainer.is_last_batch
        or 0 <= trainer.max_steps <= trainer.global_step
        or trainer.val_check_batch != trainer.num_training_batches
    )
