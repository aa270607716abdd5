"""Lightning's `WeightAveraging` in a fit: average the whole learner, and store the scored weights in checkpoints."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor


def averages(callbacks: Iterable[Callback]) -> list[WeightAveraging]:
    return [each for each in callbacks if isinstance(each, WeightAveraging)]


def average_whole(learner: LightningModule) -> None:
    """Start the average from the complete learner: Lightning copies the learner before the loss is built."""
    for each in averages(learner.trainer.callbacks):  # type: ignore[attr-defined]
        each.setup(learner.trainer, learner, "fit")
        average = each._average_model
        if average is not None and average.avg_fn is not None:
            average.avg_fn = partial(_unless_equal, average.avg_fn)


def _unless_equal(mean: Callable[..., Tensor], average: Tensor, new: Tensor, number: Tensor | int) -> Tensor:
    """The mean; equal weights, as in a frozen trunk, stay exactly equal instead of being rounded."""
    return torch.where(average == new, average, mean(average, new, number))


def follow_until_first_update(callbacks: Iterable[Callback]) -> None:
    """Keep an average equal to the trained weights until its first update; Lightning would use the initial weights."""
    for each in averages(callbacks):
        for hook in ("on_validation_epoch_start", "on_save_checkpoint", "on_train_end"):
            setattr(each, hook, partial(_follow, each, hook))


def _follow(each: WeightAveraging, hook: str, trainer: Any, learner: LightningModule, *args: Any) -> None:
    average = each._average_model
    if average is not None and average.n_averaged == 0:
        average.update_parameters(learner)  # copies, because it is the first
        average.n_averaged.zero_()
        if hook == "on_train_end":
            rank_zero_warn(
                f"{type(each).__name__} averaged nothing in {trainer.global_step} steps, so the trained weights are "
                "kept: let it start earlier",
                category=UserWarning,
            )
    getattr(type(each), hook)(each, trainer, learner, *args)


def save_average(learner: LightningModule, checkpoint: dict[str, Any]) -> None:
    """Put the averaged weights into a weights-only checkpoint, for which Lightning calls no callback."""
    if "callbacks" in checkpoint or learner._trainer is None:
        return
    for each in averages(learner.trainer.callbacks):  # type: ignore[attr-defined]
        each.on_save_checkpoint(learner.trainer, learner, checkpoint)
        for key in ("current_model_state", "averaging_state"):
            checkpoint.pop(key, None)


def forget_average(learner: LightningModule) -> None:
    """Drop the average after a fit: the learner has it, and Lightning would test a checkpoint's unaveraged weights."""
    for each in averages(learner.trainer.callbacks):  # type: ignore[attr-defined]
        each._average_model = None
