"""Weighted sum of losses."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from levelfield.losses.base import (
    Choice,
    Labels,
    LossFactory,
    MetricLoss,
    MetricLossFactory,
    Points,
    RefLabels,
    RefPoints,
    Scalar,
)


class WeightedSum(MetricLoss):
    """A weighted sum of several losses on one batch.

        L = sum_k weight_k L_k

    Args:
        losses: by names of your choice. The learner builds those that are classes or partials, and supplies
            `num_classes` and `embedding_size` to those that take them. In your own loop, give modules.
        weights: by the same names, at least 0; 1 for a loss without one.

    Each loss gets the miner's choice and the references. All learnt weights share `loss_lr`.

    Cost: that of all losses. When: losses that complement each other, such as one of pairs and one with class weights.
    Paper: Musgrave et al. 2020, "PyTorch Metric Learning", arXiv:2008.09164 (`MultipleLosses`).
    """

    def __init__(
        self, losses: Mapping[str, MetricLossFactory | LossFactory], weights: Mapping[str, float] | None = None
    ) -> None:
        super().__init__()
        given: Mapping[str, Any] = losses
        weights = weights or {}
        if not given or not isinstance(given, Mapping):
            kind = f"a {type(given).__name__}" if given else "empty"
            raise ValueError(f"losses is {kind}: give one or more by name, such as {{'pairs': ContrastiveLoss()}}")
        for name in weights:
            if name not in given:
                raise ValueError(f"weights name {name!r}, which is none of the losses {', '.join(given)}")
            if not 0 <= weights[name] < float("inf"):
                raise ValueError(f"weights {name}={weights[name]} must be a number of at least 0")
        for name, loss in given.items():
            if not isinstance(loss, nn.Module):
                raise ValueError(f"losses {name}={loss!r} is no module: make it, or let a learner make the sum")
        self.losses = nn.ModuleDict(given)
        self.takes_label_sets = all(getattr(loss, "takes_label_sets", False) for loss in given.values())
        self.weights = {name: float(weights.get(name, 1.0)) for name in given}

    def compute(
        self, embeddings: Points, labels: Labels, indices_tuple: Choice, ref_emb: RefPoints, ref_labels: RefLabels
    ) -> Scalar:
        references = () if ref_emb is None else (ref_emb, ref_labels)
        choice = () if indices_tuple is None and ref_emb is None else (indices_tuple,)
        values = [
            weight * self.losses[name](embeddings, labels, *choice, *references)
            for name, weight in self.weights.items()
        ]
        return sum(values[1:], values[0])
