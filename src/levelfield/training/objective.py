"""What a training step minimises: the loss of a batch and, where there is a regularizer, its weighted penalty."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from levelfield.errors import UserError
from levelfield.losses.classification import ClassificationLoss

TRAIN_LOSS, TRAIN_REGULARIZER = "train/loss", "train/regularizer"


def objective(
    learner: Any, embeddings: Float[Tensor, "batch embedding"], labels: Int[Tensor, " batch"]
) -> dict[str, Float[Tensor, ""]]:
    """By the names that they are logged as: what is minimised, and the penalty before its weight if there is one.

    Args:
        learner: a `MetricLearner`.
        embeddings: those of the whole batch, of all processes, in their order.

    Raises:
        UserError: a loss or penalty that is not one number, or a loss without a gradient: one's own may give anything.
    """
    losses = {TRAIN_LOSS: _one_number("loss", learner.loss, learner.compute_loss(embeddings, labels))}
    if not losses[TRAIN_LOSS].requires_grad and torch.is_grad_enabled():
        raise UserError(
            f"--model.loss {type(learner.loss).__name__} gave a number without a gradient: compute it from the "
            "embeddings by operations of torch, without detach(), item() and no_grad()"
        )
    if (regularizer := learner.regularizer) is not None:
        points = embeddings if regularizer.of != "class_weights" else _with_class_weights(learner)[0].class_weights
        losses[TRAIN_REGULARIZER] = _one_number("regularizer", regularizer, regularizer(points))
        losses[TRAIN_LOSS] = losses[TRAIN_LOSS] + regularizer.weight * losses[TRAIN_REGULARIZER]
    return losses


def check_regularizer(learner: Any) -> None:
    """Raises UserError for a regularizer of points that the learner has not.

    Args:
        learner: a `MetricLearner` with its loss.
    """
    if (regularizer := learner.regularizer) is None:
        return
    option = f"--model.regularizer {type(regularizer).__name__}"
    if regularizer.of == "raw_embeddings" and learner.normalize:
        raise UserError(
            f"{option} is of raw embeddings, and --model.normalize true gives them all length 1: give "
            "--model.normalize false (losses of cosines normalise by themselves)"
        )
    if regularizer.of != "class_weights":
        return
    name, losses = type(learner.loss).__name__, _with_class_weights(learner)
    if len(losses) != 1:
        raise UserError(
            f"{option} is of class weights, of which --model.loss {name} has {len(losses) or 'none'}: "
            "give a loss that has them once (docs/losses.md)"
        )


def _one_number(part: str, giver: Any, value: Any) -> Tensor:
    if isinstance(value, Tensor) and value.numel() == 1:
        return value
    given = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
    raise UserError(
        f"--model.{part} {type(giver).__name__} gave {given}: let its forward return one number, a tensor of shape ()"
    )


def _with_class_weights(learner: Any) -> list[ClassificationLoss]:
    return [part for part in learner.loss.modules() if isinstance(part, ClassificationLoss)]
