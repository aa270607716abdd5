"""How much of a batch a loss still learns from: the pairs and triplets with a gradient, and those that a miner chose.

N embeddings of a batch, D dimensions.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from levelfield.losses import TripletMarginLoss
from levelfield.losses.base import IndicesTuple, PairMasks
from levelfield.losses.pairs import PairLoss, distances, pair_weights, unit_distances
from levelfield.losses.triplets import count_violations, padded_positives


def active_pairs(
    loss: nn.Module, embeddings: Float[Tensor, "N D"], labels: Int[Tensor, " N"], chosen: IndicesTuple | None
) -> dict[str, Float[Tensor, ""]]:
    """The share of a batch's positive pairs, negative pairs or triplets that move anything, where a loss can tell.

    A pair is active if the loss has a slope in its distance or similarity: of a loss of pairs that is seen by its
    derivative, which no draw of the training's is taken for. A triplet is if its negative is not farther than its
    positive by the margin, whatever the miner chose.

    Args:
        chosen: what the miner gave the loss.

    Returns:
        `active_positives` and `active_negatives`, or `active_triplets`; nothing for any other loss.
    """
    points_ND = embeddings.detach()
    if isinstance(loss, TripletMarginLoss):
        apart = unit_distances if loss.normalize else distances
        units_ND = loss.points(points_ND, None)[0]
        dist_NN = apart(units_ND, units_ND) ** loss.power
        positives_NN, negatives_NN = pair_weights(labels, None, None, dtype=dist_NN.dtype)
        columns, present = padded_positives(positives_NN, once=True)
        near = dist_NN.gather(1, columns)
        active = count_violations(near, present, dist_NN, negatives_NN, loss.margin)[0].sum()
        return {"active_triplets": _share(active, _triplets(positives_NN, negatives_NN))}
    if not isinstance(loss, PairLoss) or type(loss).compute is not PairLoss.compute:
        return {}
    weights = pair_weights(labels, chosen, None, dtype=points_ND.dtype, count_repeats=loss.count_repeats)
    units_ND = loss.points(points_ND, None)[0]
    matrix_NN = loss.matrix(units_ND, units_ND).detach().requires_grad_()
    with torch.random.fork_rng(_cuda(matrix_NN)), torch.enable_grad():
        value = loss.pair_loss(matrix_NN, *weights)
        slope_NN = torch.autograd.grad(value, matrix_NN)[0]
    every = pair_weights(labels, None, None, dtype=points_ND.dtype)
    named = ("active_positives", "active_negatives")
    return {
        name: _share(((slope_NN != 0) & (counted > 0)).sum(), of.sum())
        for name, counted, of in zip(named, weights, every, strict=True)
    }


def mined_pairs(labels: Int[Tensor, " N"], chosen: IndicesTuple | None) -> dict[str, Float[Tensor, ""]]:
    """The share of a batch's pairs or triplets that a miner chose, repeats counted.

    Returns:
        `mined_positives` and `mined_negatives`, or `mined_triplets`; nothing without a miner.
    """
    if chosen is None:
        return {}
    positives_NN, negatives_NN = pair_weights(labels, None, None, dtype=torch.float32)
    if isinstance(chosen, PairMasks):
        found = {"mined_positives": chosen.positives.sum(), "mined_negatives": chosen.negatives.sum()}
    elif len(chosen) == 3:
        number = torch.tensor(len(chosen[0]), device=labels.device)
        return {"mined_triplets": _share(number, _triplets(positives_NN, negatives_NN))}
    else:
        numbers = {"mined_positives": len(chosen[0]), "mined_negatives": len(chosen[2])}
        found = {name: torch.tensor(number, device=labels.device) for name, number in numbers.items()}
    return {
        name: _share(number, of.sum())
        for (name, number), of in zip(found.items(), (positives_NN, negatives_NN), strict=True)
    }


def _triplets(positives: Float[Tensor, "N N"], negatives: Float[Tensor, "N N"]) -> Float[Tensor, ""]:
    return (positives.sum(1) * negatives.sum(1)).sum()


def _share(part: Tensor, whole: Tensor) -> Float[Tensor, ""]:
    return part.float() / whole.float().clamp_min(1)


def _cuda(tensor: Tensor) -> list[int]:
    """The GPU whose generator a tensor's draws come from, as a list."""
    return [tensor.get_device()] if tensor.device.type == "cuda" else []
