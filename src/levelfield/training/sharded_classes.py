"""Class weights that lie over processes, in a training: whole in checkpoints, clipped as one, with sparse gradients."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.optim import Optimizer

from levelfield.errors import UserError
from levelfield.losses.class_shard import ClassShard
from levelfield.losses.classification import ClassificationLoss
from levelfield.training.lazy_adamw import LazyAdamW

ASKED = "--model.loss.shard_classes true"


def divided_weights(learner: LightningModule) -> dict[nn.Parameter, tuple[str, ClassShard]]:
    """The class weights of which each process has a share, named: DDP must neither spread nor average them."""
    return {
        loss.class_weights: (f"{name}.class_weights", loss.shard)
        for name, loss in _losses(learner)
        if loss.shard.world_size > 1
    }


def take_optimizer(learner: LightningModule, optimizer: Optimizer) -> None:
    """Have an optimizer take its states from the whole ones of a checkpoint.

    Raises:
        UserError: an optimizer of torch's that does not take the sparse gradient of drawn classes, or a strategy or a
            precision that does not go with class weights over processes.
    """
    if divided_weights(learner):
        if not isinstance(learner.trainer.strategy, DDPStrategy):
            raise UserError(f"{ASKED} over processes goes with --trainer.strategy ddp alone")
        if learner.trainer.precision == "16-mixed":  # which has a process leave out a step, by its own gradients
            raise UserError(f"{ASKED} over processes does not go with --trainer.precision 16-mixed: give bf16-mixed")
    sparse = {loss.class_weights for _, loss in _losses(learner) if loss.class_fraction < 1}
    for group in optimizer.param_groups:
        if sparse.intersection(group["params"]) and not _takes_sparse(optimizer, group):
            raise UserError(
                f"{ASKED} with a class_fraction gives {type(optimizer).__name__} the gradient of the drawn rows alone, "
                "which it does not take: give --model.optimizer LazyAdamW, or "
                "torch.optim.SGD without momentum and loss_weight_decay"
            )
    optimizer.register_load_state_dict_pre_hook(lambda _, state: _turned(learner, optimizer, state, ClassShard.own))


def make_whole(learner: LightningModule, checkpoint: dict[str, Any]) -> None:
    """Put whole class weights and their optimizer's states into a checkpoint; all processes must call it."""
    shards, weights = divided_weights(learner), checkpoint["state_dict"]
    if not shards:
        return
    for name, shard in shards.values():
        weights[name] = shard.whole(weights[name])
    if states := checkpoint.get("optimizer_states"):
        optimizers = learner.trainer.optimizers
        checkpoint["optimizer_states"] = [
            _turned(learner, optimizer, state, ClassShard.whole)
            for optimizer, state in zip(optimizers, states, strict=True)
        ]


@torch.no_grad()
def clip_gradients(
    learner: LightningModule,
    optimizer: Optimizer,
    gradient_clip_val: float | None = None,
    gradient_clip_algorithm: str | None = None,
) -> bool:
    """torch's clipping, by `value` or by the `norm` of all gradients, where some are sparse or lie over processes.

    Returns:
        Whether there are such, and Lightning's own clipping must not follow.
    """
    if not any(True for _ in _losses(learner)):
        return False
    if gradient_clip_val is None:
        return True
    here: list[Tensor] = []
    everywhere: list[Tensor] = []
    elsewhere = divided_weights(learner)
    for parameter in (each for group in optimizer.param_groups for each in group["params"]):
        if parameter.grad is not None:
            sparse = parameter.grad.is_sparse
            parameter.grad = parameter.grad.coalesce() if sparse else parameter.grad
            values = parameter.grad.values() if sparse else parameter.grad
            (here if parameter in elsewhere else everywhere).append(values)
    if gradient_clip_algorithm == "value":
        for values in here + everywhere:
            values.clamp_(-gradient_clip_val, gradient_clip_val)
        return True
    squares = torch.zeros((), dtype=torch.float64, device=learner.device)
    for values in here:
        squares += values.double().square().sum()
    if elsewhere:
        dist.all_reduce(squares)
    for values in everywhere:
        squares += values.double().square().sum()
    share = (gradient_clip_val / (squares.sqrt() + 1e-6)).clamp(max=1)  # as in torch.nn.utils.clip_grad_norm_
    for values in here + everywhere:
        values.mul_(share.to(values.dtype))
    return True


def _losses(learner: LightningModule) -> Iterator[tuple[str, ClassificationLoss]]:
    for part, child in learner.named_children():
        if part == "trunk":  # has none, and hundreds of modules to look through at each step
            continue
        for name, module in child.named_modules(prefix=part):
            if isinstance(module, ClassificationLoss) and module.shard_classes:
                yield name, module


def _takes_sparse(optimizer: Optimizer, group: dict[str, Any]) -> bool:
    if isinstance(optimizer, LazyAdamW) or not type(optimizer).__module__.startswith("torch."):
        return True
    return isinstance(optimizer, torch.optim.SGD) and not group["momentum"] and not group["weight_decay"]


def _turned(
    learner: LightningModule,
    optimizer: Optimizer,
    state: dict[str, Any],
    turn: Callable[[ClassShard, Tensor], Tensor],
) -> dict[str, Any]:
    """An optimizer's state, with what has a row for each centre turned from a share into the whole, or back."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    shards, states = divided_weights(learner), dict(state["state"])
    for parameter, number in zip(parameters, numbers, strict=True):
        if parameter in shards and number in states:
            shard = shards[parameter][1]
            states[number] = {
                key: turn(shard, value) if isinstance(value, Tensor) and value.ndim else value
                for key, value in states[number].items()
            }
    return {**state, "state": states}
