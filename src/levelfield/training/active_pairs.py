"""Fractions of a batch's pairs and triplets: those with a gradient, and those that a miner selected.

N embeddings of a batch, D dimensions.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from levelfield.losses import TripletMarginLoss
from levelfield.losses.base import IndicesTuple
from levelfield.losses.pairs import PairLoss, as_pairs, pair_weights
from levelfield.losses.triplets import count_violations, padded_positives


def active_pairs(
    loss: nn.Module, embeddings: Float[Tensor, "N D"], labels: Int[Tensor, " N"], chosen: IndicesTuple | None
) -> dict[str, Float[Tensor, ""]]:
    """The fraction of a batch's positive and negative pairs, or triplets, with a gradient.

    A triplet is active if it violates the margin of `TripletMarginLoss`, independent of the miner.

    Args:
        chosen: The output of the miner.

    Returns:
        `active_positives` and `active_negatives`, or `active_triplets`; empty for other losses.
    """
    positives_NN, negatives_NN = pair_weights(labels, None, None, dtype=embeddings.dtype)
    if isinstance(loss, TripletMarginLoss):
        units_ND = loss.points(embeddings.detach(), None)[0]
        dist_NN = loss.distances(units_ND, units_ND) ** loss.power
        columns, present = padded_positives(positives_NN, once=True)
        near = dist_NN.gather(1, columns)
        violations, _ = count_violations(near, present, dist_NN, negatives_NN, loss.margin)
        return {"active_triplets": _share(violations.sum(), _triplets(positives_NN, negatives_NN))}
    if not isinstance(loss, PairLoss) or type(loss).compute is not PairLoss.compute:
        return {}
    counted = pair_weights(labels, chosen, None, dtype=embeddings.dtype, count_repeats=loss.count_repeats)
    units_ND = loss.points(embeddings.detach(), None)[0]
    matrix_NN = loss.matrix(units_ND, units_ND).detach().requires_grad_()
    with torch.random.fork_rng([matrix_NN.get_device()] * matrix_NN.is_cuda), torch.enable_grad():
        slope_NN = torch.autograd.grad(loss.pair_loss(matrix_NN, *counted), matrix_NN)[0]
    positives, negatives = (((slope_NN != 0) & (weights > 0)).sum() for weights in counted)
    return {
        "active_positives": _share(positives, positives_NN.sum()),
        "active_negatives": _share(negatives, negatives_NN.sum()),
    }


def mined_pairs(labels: Int[Tensor, " N"], chosen: IndicesTuple | None) -> dict[str, Float[Tensor, ""]]:
    """The fraction of a batch's pairs or triplets that a miner selected; repeated ones count each time.

    Returns:
        `mined_positives` and `mined_negatives`, or `mined_triplets`; empty without a miner.
    """
    if chosen is None:
        return {}
    positives_NN, negatives_NN = pair_weights(labels, None, None, dtype=torch.float32)
    if len(chosen) == 3:
        return {"mined_triplets": _share(len(chosen[0]), _triplets(positives_NN, negatives_NN))}
    positives, _, negatives, _ = as_pairs(chosen)
    return {
        "mined_positives": _share(len(positives), positives_NN.sum()),
        "mined_negatives": _share(len(negatives), negatives_NN.sum()),
    }


def _triplets(positives: Float[Tensor, "N N"], negatives: Float[Tensor, "N N"]) -> Float[Tensor, ""]:
    return (positives.sum(1) * negatives.sum(1)).sum()


def _share(part: Tensor | int, whole: Tensor) -> Float[Tensor, ""]:
    return part / whole.float().clamp_min(1)
