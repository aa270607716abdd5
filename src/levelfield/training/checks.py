"""Check a learner's parts before the first step."""

import inspect
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from levelfield.core.errors import UserError
from levelfield.losses.classification import ClassificationLoss
from levelfield.losses.weighted_sum import WeightedSum
from levelfield.models.embedders import check_embedder

# Callbacks of Lightning that do not suit a learner, and why.
UNSUITABLE = {
    "BackboneFinetuning": "a learner has no backbone; NewWeightsFirst trains embedder and loss before the trunk",
    "BatchSizeFinder": "the loss depends on the batch; give --data.batch_size, and GradientCaching to save memory",
    "LearningRateFinder": "it finds one rate; give --model.trunk_lr, --model.embedder_lr and --model.loss_lr",
}


def check_parts(learner: Any) -> None:
    """Check loss, miner, regularizer and embedder of a `MetricLearner`.

    Raises:
        UserError: a part that the learner cannot call, or a regularizer that needs points the learner does not have.
    """
    if type(learner.loss) is nn.Identity:  # of `load_learner`
        raise UserError("the learner was loaded without its loss: give load_from_checkpoint(..., loss=...)")
    check_call(learner.loss, learner.miner)
    _check_regularizer(learner)
    check_embedder(learner.embedder, learner.trunk.num_features, learner.embedding_size)


def check_callbacks(learner: LightningModule) -> None:
    """Raise UserError for a callback that does not suit a `MetricLearner` with its own optimizer."""
    for name in (type(callback).__name__ for callback in learner.trainer.callbacks):  # type: ignore[attr-defined]
        if name in UNSUITABLE and not (name == "BackboneFinetuning" and hasattr(learner, "backbone")):
            raise UserError(f"--trainer.callbacks {name}: {UNSUITABLE[name]}")


def warn_of_traps(learner: Any, datamodule: Any) -> None:
    """Warn about parts that silently train worse or do not resume.

    These are a trunk with random weights and frozen batch norm, plain tensors of a user's part, and classes of the
    program itself, which no other program can import.
    """
    parts = [learner, getattr(learner.trunk, "module", learner.trunk), learner.embedder, learner.miner]
    parts += [*learner.loss.modules(), learner.regularizer, datamodule]
    parts += [getattr(datamodule, name, None) for name in ("dataset", "sampler", "transforms")]
    kinds = [part if isinstance(part, type) else type(part) for part in parts]
    if own := [kind.__name__ for kind in dict.fromkeys(kinds) if kind.__module__ == "__main__"]:
        rank_zero_warn(
            f"{', '.join(own)}: no command can load the checkpoint, because this program defines the class itself; "
            "move it to a module and import it",
            category=UserWarning,
        )
    frozen = [part for part in learner.trunk.modules() if isinstance(part, _BatchNorm) and not part.training]
    if frozen and learner.trunk.weights_origin == "random" and not learner.freeze_trunk:
        rank_zero_warn(
            "the trunk starts at random weights, but its batch norm is frozen: give --model.freeze_batch_norm false",
            category=UserWarning,
        )
    for name in ("embedder", "loss", "miner", "regularizer"):
        part = getattr(learner, name)
        for module in part.modules() if isinstance(part, nn.Module) else ():
            for key in [key for key, value in vars(module).items() if isinstance(value, Tensor)]:
                rank_zero_warn(
                    f"--model.{name} {type(module).__name__}: self.{key} is a plain tensor, which checkpoints do not "
                    f"store and devices do not get: use self.register_buffer('{key}', ...)",
                    category=UserWarning,
                )


def check_features(learner: Any, forward: Any) -> None:
    """Check that features are constant in a training: nothing before the embedder changes.

    Args:
        learner: a `MetricLearner`.
        forward: `MetricLearner.forward`, which features replace.

    Raises:
        UserError: the trunk is not frozen, or the learner has its own `forward`.
    """
    if not learner.freeze_trunk:
        raise UserError(
            "--data.features needs a frozen trunk: give --model.freeze_trunk true, or leave --data.features out"
        )
    if type(learner).forward is not forward:
        raise UserError(
            f"--data.features skips the forward of {type(learner).__name__}: override embed_features, which gets the "
            "features, or leave --data.features out"
        )


def trunk_of(module: nn.Module, callback: object) -> Any:
    """The trunk that a callback changes.

    Raises:
        UserError: the module, perhaps a plain LightningModule, has none.
    """
    if not isinstance(trunk := getattr(module, "trunk", None), nn.Module):
        raise UserError(
            f"--trainer.callbacks {type(callback).__name__} needs self.trunk, which {type(module).__name__} lacks: "
            "name your network so, or leave the callback out"
        )
    return trunk


def one_number(part: str, giver: Any, value: Any, needs_gradient: bool = False) -> Tensor:
    """The return value of a user's loss or regularizer.

    Raises:
        UserError: it is not one number, or lacks a gradient.
    """
    option = f"--model.{part} {type(giver).__name__}"
    if not (isinstance(value, Tensor) and value.numel() == 1):
        given = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise UserError(f"{option} returned {given}: return one number, a tensor of shape ()")
    if needs_gradient and torch.is_grad_enabled() and not value.requires_grad:
        raise UserError(
            f"{option} returned a number without a gradient: compute it from the embeddings with torch, without "
            "detach(), item() and no_grad()"
        )
    return value


def with_class_weights(loss: nn.Module) -> list[ClassificationLoss]:
    """All losses with class weights inside a loss, including itself."""
    return [part for part in loss.modules() if isinstance(part, ClassificationLoss)]


def check_call(loss: nn.Module, miner: nn.Module | None) -> None:
    """Raise UserError unless loss and miner take a batch, and the loss takes the miner's selection."""
    if isinstance(loss, WeightedSum):
        for each in loss.losses.values():
            check_call(each, miner)
        return
    name = type(loss).__name__
    if not _takes(loss, 2):
        raise UserError(f"--model.loss {name}: its forward must take (embeddings, labels)")
    if miner is None:
        return
    if not _takes(loss, 3):
        raise UserError(
            f"--model.loss {name} cannot use a miner: leave out --model.miner {type(miner).__name__}, or define "
            "forward(embeddings, labels, indices_tuple=None)"
        )
    if not _takes(miner, 2):
        raise UserError(f"--model.miner {type(miner).__name__}: its forward must take (embeddings, labels)")


def _takes(module: nn.Module, arguments: int) -> bool:
    try:
        inspect.signature(module.forward).bind(*(None,) * arguments)
    except TypeError:
        return False
    return True


def _check_regularizer(learner: Any) -> None:
    if (regularizer := learner.regularizer) is None:
        return
    option = f"--model.regularizer {type(regularizer).__name__}"
    if regularizer.of == "raw_embeddings" and learner.normalize:
        raise UserError(
            f"{option} needs raw embeddings, but --model.normalize true gives all of them length 1: give "
            "--model.normalize false (losses of cosines normalize themselves)"
        )
    if regularizer.of != "class_weights":
        return
    name, losses = type(learner.loss).__name__, with_class_weights(learner.loss)
    if len(losses) != 1:
        raise UserError(
            f"{option} needs class weights, and --model.loss {name} has {len(losses) or 'none'}: give a loss with one "
            "set of class weights (docs/losses.md)"
        )
