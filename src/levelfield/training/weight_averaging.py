"""Averages of weights in a fit: of the whole learner, as scored and stored in checkpoints; one with the start."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn

from levelfield.core.errors import UserError


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
    if average is not None and isinstance(each, AverageWithStart):
        each.follow(trainer, learner)
    elif average is not None and average.n_averaged == 0:
        average.update_parameters(learner)  # copies, because it is the first
        average.n_averaged.zero_()
        if hook == "on_train_end":
            rank_zero_warn(
                f"{type(each).__name__} averaged nothing in {trainer.global_step} steps, so the trained weights are "
                "kept: let it start earlier"
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


def between(start: Mapping[str, Any], trained: Mapping[str, Any], alpha: float) -> dict[str, Any]:
    """`alpha * trained + (1 - alpha) * start`; other values, such as counters of batch norm, are the trained ones.

    Weights that training has not changed stay as they are; the average would round them.
    """
    mixed = dict(trained)
    for name, weight in trained.items():
        if isinstance(weight, Tensor) and weight.is_floating_point():
            one = start[name].to(weight.device)
            mixed[name] = torch.where(one == weight, weight, torch.lerp(one, weight, alpha))
    return mixed


class AverageWithStart(WeightAveraging):
    """Scores and stores `alpha * trained + (1 - alpha) * start` (WiSE-FT, Wortsman et al. 2022, arXiv 2109.01903).

    The average keeps knowledge of the pretrained weights about other classes and costs nothing after training. It
    covers all trained weights and the running statistics of batch norm, but not the weights of the loss: these start
    random, and embeddings do not need them. For an adapter, its two factors are averaged, not their product. Each step
    continues from the trained weights. A study selects alpha on its folds (`derived`).

    Args:
        alpha: Share of the trained weights, above 0 and at most 1.

    Raises:
        UserError: an invalid alpha, or a second average of weights.
    """

    def __init__(self, alpha: float) -> None:
        if not 0 < alpha <= 1:
            raise UserError(f"AverageWithStart.alpha is {alpha}: give a number above 0 and at most 1")
        super().__init__()
        self.alpha = alpha
        self._start: dict[str, Tensor] = {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            if len(averages(trainer.callbacks)) > 1:  # type: ignore[attr-defined]
                raise UserError("AverageWithStart and another average of weights: leave one of the two callbacks out")
            self._start = {}
        super().setup(trainer, pl_module, stage)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self._start:  # else it comes from a checkpoint
            self._start = {name: tensor.clone() for name, tensor in _tensors(pl_module) if not name.startswith("loss.")}

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        return False  # `follow` does it before each use

    def follow(self, trainer: Trainer, learner: LightningModule) -> None:
        """Set the average from the current weights: before a validation or a checkpoint, and at the end."""
        assert self._average_model is not None
        self.on_train_start(trainer, learner)  # `ValidateFirst` may come before this callback
        trained = dict(_tensors(learner))
        mixed = trained | between(self._start, {name: trained[name] for name in self._start}, self.alpha)
        for name, tensor in _tensors(self._average_model.module):
            tensor.copy_(mixed[name])

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "start": self._start}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._start = state_dict["start"]


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Weights and buffers by name."""
    return ((name, each.detach()) for name, each in chain(module.named_parameters(), module.named_buffers()))
