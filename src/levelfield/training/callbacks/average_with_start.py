"""Average the trained weights with the initial weights."""

from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from levelfield.core.errors import UserError
from levelfield.training.weight_averaging import averages

Weights = Mapping[str, Tensor]


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


class AverageWithStart(Callback):
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
        self.alpha = alpha
        self._start: Weights | None = None
        self._trained: Weights | None = None  # while the learner holds the average

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit" and averages(trainer.callbacks):  # type: ignore[attr-defined]
            raise UserError("AverageWithStart and another average of weights: leave one of the two callbacks out")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._start is None:  # else it comes from a checkpoint
            self._start = _copy(_averaged(pl_module))

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking:
            self.on_train_start(trainer, pl_module)  # `ValidateFirst` may come before this callback
            self.on_train_epoch_end(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._trained is None:  # before a checkpoint of this epoch is written
            self._trained = _copy(_averaged(pl_module))
            assert self._start is not None
            _fill(pl_module, between(self._start, self._trained, self.alpha))

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, *args: Any
    ) -> None:
        if self._trained is not None:
            _fill(pl_module, self._trained)
            self._trained = None

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._start = self._trained = None

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._start = self._trained = None

    def state_dict(self) -> dict[str, Any]:
        return {"start": self._start, "trained": self._trained}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._start, self._trained = state_dict["start"], state_dict["trained"]


def _averaged(learner: LightningModule) -> Weights:
    """The learner's tensors (no copies) that are averaged, by their names in a checkpoint."""
    weights = (each for each in learner.named_parameters(remove_duplicate=False) if each[1].requires_grad)
    found = chain(weights, learner.named_buffers(remove_duplicate=False))
    return {
        name: tensor.detach() for name, tensor in found if tensor.is_floating_point() and not name.startswith("loss.")
    }


def _copy(weights: Weights) -> Weights:
    return {name: weight.clone() for name, weight in weights.items()}


def _fill(learner: LightningModule, weights: Weights) -> None:
    for name, weight in _averaged(learner).items():
        weight.copy_(weights[name])
