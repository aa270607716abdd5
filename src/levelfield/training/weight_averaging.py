"""Averages of weights: Lightning's moving averages, which a fit scores and stores, and a mean with the start."""

from collections.abc import Callable, Iterable, Mapping
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
            rank_zero_warn(f"{type(each).__name__} averaged nothing in {trainer.global_step} steps: start it earlier")
    getattr(type(each), hook)(each, trainer, learner, *args)


def save_average(learner: LightningModule, checkpoint: dict[str, Any]) -> None:
    """Put the averaged weights into a weights-only checkpoint, for which Lightning calls no callback."""
    if "callbacks" in checkpoint or learner._trainer is None:
        return
    for each in averages(learner.trainer.callbacks):  # type: ignore[attr-defined]
        each.on_save_checkpoint(learner.trainer, learner, checkpoint)
        for key in ("current_model_state", "averaging_state"):
            checkpoint.pop(key, None)


def between(start: Mapping[str, Any], trained: Mapping[str, Any], alpha: float) -> dict[str, Any]:
    """`alpha * trained + (1 - alpha) * start` (WiSE-FT, Wortsman et al. 2022, arXiv 2109.01903).

    Other values, such as counters of batch norm, are the trained ones. Weights that training has not changed stay as
    they are; the average would round them.
    """
    mixed = dict(trained)
    for name, weight in trained.items():
        if isinstance(weight, Tensor) and weight.is_floating_point():
            one = start[name].to(weight.device)
            mixed[name] = torch.where(one == weight, weight, torch.lerp(one, weight, alpha))
    return mixed
