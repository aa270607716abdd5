"""Optimizer and learning rates: one group of weights per part, or per layer of the trunk."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from levelfield.core.errors import UserError, nearest, refuse_below
from levelfield.core.option_hints import OF_TRAINING, option_here
from levelfield.training.loss_factory import loss_attribute
from levelfield.training.settings import parameters

OptimizerFactory = Callable[[Iterable], Optimizer]
SchedulerFactory = Callable[[Optimizer], LRScheduler]


def adamw(parameters: Iterable) -> Optimizer:
    """AdamW with torch's defaults, fused (equal up to rounding). The groups set the learning rates."""
    groups = [{**each, "params": list(each["params"])} if isinstance(each, dict) else each for each in parameters]
    weights = [weight for each in groups for weight in (each["params"] if isinstance(each, dict) else [each])]
    fused = all(weight.device.type in ("cpu", "cuda") and weight.is_floating_point() for weight in weights)
    optimizer = torch.optim.AdamW(groups, fused=fused or None)
    if fused:  # a fused optimizer claims to unscale gradients, and Lightning then refuses to clip them
        optimizer._step_supports_amp_scaling = False
    return optimizer


@dataclass
class Optimization:
    """Optimizer, learning rates and their schedule. A learner takes each field as an argument: `loss_lr=0.1`.

    Args:
        optimizer: class of the optimizer.
        trunk_lr: learning rate of the trunk.
        embedder_lr: learning rate of the embedder and of weights outside trunk and loss.
        loss_lr: learning rate of the loss (class weights, learned margins). None takes the attribute `loss_lr` of the
            loss class, or 0.01.
        weight_decay: weight decay of all weights except those of the loss.
        loss_weight_decay: weight decay of the loss.
        lr_scheduler: class of the schedule; `ReduceLROnPlateau` with `mode="max"` watches `val/map_at_r`, or another
            score of `RetrievalValidation.selected_by`.
        lr_scheduler_interval: whether the schedule counts each `epoch` or each `step`.
        layer_decay: factor on `trunk_lr` from each layer of the trunk to the layer below it (docs/trunks.md).

    Raises:
        UserError: a negative learning rate or weight decay.
    """

    optimizer: OptimizerFactory = adamw
    trunk_lr: float = 1e-4
    embedder_lr: float = 1e-3
    loss_lr: float | None = None
    weight_decay: float = 1e-4
    loss_weight_decay: float = 0.0
    lr_scheduler: SchedulerFactory | None = None
    lr_scheduler_interval: Literal["epoch", "step"] = "epoch"
    layer_decay: float = 1.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, np.generic):  # the optimizer's state would make a checkpoint unreadable
                setattr(self, name, value.item())
        refuse_below(0, "model", **{key: value for key, value in vars(self).items() if key.endswith(("lr", "decay"))})

    def of(self, learner: nn.Module) -> Any:
        """The optimizer of a learner's weights, with its schedule, as Lightning's `configure_optimizers` returns it.

        Raises:
            UserError: a `ReduceLROnPlateau` that waits for a falling score.
        """
        optimizer = self.optimizer(self.groups(learner))
        if self.lr_scheduler is None:
            return optimizer
        scheduler = self.lr_scheduler(optimizer)
        schedule: dict[str, Any] = {"scheduler": scheduler, "interval": self.lr_scheduler_interval}
        if isinstance(scheduler, ReduceLROnPlateau):
            if scheduler.mode == "min":
                raise UserError("ReduceLROnPlateau watches MAP@R, which rises: give --model.lr_scheduler.mode max")
            callbacks = getattr(learner._trainer, "callbacks", ())
            score = next((each.selected_by for each in callbacks if hasattr(each, "selected_by")), "map_at_r")
            schedule["monitor"] = f"val/{score}"
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    def groups(self, learner: nn.Module) -> list[dict[str, Any]]:
        """A group of weights for each part that trains. `rest` has all other weights, with the embedder's rate.

        A shared weight is in the group of the first part. With `layer_decay` each layer of the trunk is a group.

        Raises:
            UserError: no weight trains, or the layers of the trunk are unknown.
        """
        loss_lr = loss_attribute(learner.loss, "model.loss_lr") if self.loss_lr is None else self.loss_lr
        parts = [
            ("trunk", learner.trunk, self.trunk_lr, self.weight_decay),
            ("embedder", learner.embedder, self.embedder_lr, self.weight_decay),
            ("loss", learner.loss, loss_lr, self.loss_weight_decay),
            ("rest", learner, self.embedder_lr, self.weight_decay),
        ]
        found: list[dict[str, Any]] = []
        grouped: set[nn.Parameter] = set()
        for name, part, rate, decay in parts:
            assert isinstance(part, nn.Module)
            weights = [weight for weight in part.parameters() if weight.requires_grad and weight not in grouped]
            grouped.update(weights)
            rates = {"lr": rate, "weight_decay": decay}
            if weights and name == "trunk" and self.layer_decay != 1.0:
                found += _of_layers(part, rates, self.layer_decay)
            elif weights:
                found.append({"params": weights, "name": name, **rates})
        if not found:
            raise UserError("nothing to train: leave --model.freeze_trunk out, or give another --model.embedder")
        return found


def check_names(learner: type, given: Mapping[str, Any]) -> None:
    """Reject arguments that neither a class of learners nor `Optimization` takes.

    Raises:
        UserError: names the argument, and what to give instead.
    """
    for name in given.keys() - parameters(Optimization).keys():
        here = option_here(name, OF_TRAINING)
        known = [*parameters(learner), *parameters(Optimization)]
        instead = f"; give {here.replace('--model.', '')}" if here else nearest(name, known, "")
        raise UserError(f"{learner.__name__} takes no argument '{name}'{instead}")


def _of_layers(trunk: nn.Module, rates: dict[str, float], decay: float) -> Iterator[dict[str, Any]]:
    """A group for each layer l of L, with the rate

        lr * decay^(L - l)

    Bao et al. 2021, "BEiT: BERT Pre-Training of Image Transformers", arXiv:2106.08254; L is the embedder, above the
    trunk. Weights keep their order, because an optimizer stores its state by order.
    """
    from levelfield.models.layers import layer_numbers

    numbers, above = layer_numbers(trunk)
    learning = [(name, weight) for name, weight in trunk.named_parameters() if weight.requires_grad]
    for layer, members in groupby(learning, key=lambda pair: numbers[pair[0]]):
        of_layer = {**rates, "lr": rates["lr"] * decay ** (above - layer)}
        yield {"params": [weight for _, weight in members], "name": f"trunk.{layer}", **of_layer}
