"""Find samples whose label may be wrong, and near duplicates, from the embeddings of a labelled data set.

Shapes: N samples, D dimensions.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from levelfield.core.errors import UserError
from levelfield.metrics.distances import full_precision, normalize, product
from levelfield.metrics.nearest import nearest
from levelfield.metrics.query_scores import DEFAULT_MEMORY_BUDGET
from levelfield.metrics.ranking import block_starts

# Memory per similarity: its value, and whether it is above the bound.
SIMILARITY_BYTES = 9


class Doubts(NamedTuple):
    """What the neighbours say about the label of each sample.

    Attributes:
        agreement: fraction of the neighbours, weighted by similarity, with the label of the sample.
        vote: the label with the largest weight.
    """

    agreement: Float[Tensor, " N"]
    vote: Int[Tensor, " N"]

    def suspects(self, at_most: float = 0.5) -> Int[Tensor, " suspects"]:
        """Samples with an agreement below `at_most`, the lowest first; equal ones in their order."""
        order = self.agreement.argsort(stable=True)
        return order[self.agreement[order] < at_most]


def label_doubts(embeddings: Float[Tensor, "N D"], labels: Int[Tensor, " N"], neighbours: int = 10) -> Doubts:
    """Agreement of each label with the nearest other samples: a leave-one-out vote weighted by cosine.

    Args:
        neighbours: number of votes; a class with fewer samples than votes loses.

    Raises:
        UserError: fewer than 1 neighbour, or as many as there are samples.

    Example:
        >>> east = [[1.0, 0.0], [1.0, 0.1], [1.0, 0.2], [0.9, 0.0]]
        >>> north = [[0.0, 1.0], [0.1, 1.0], [0.2, 1.0], [0.0, 0.9]]
        >>> label_doubts(torch.tensor(east + north), torch.tensor([0, 0, 0, 1, 1, 1, 1, 1]), neighbours=3).suspects()
        tensor([3])
    """
    if not 1 <= neighbours < len(labels):
        raise UserError(f"neighbours={neighbours} with {len(labels)} samples: give 1 to {len(labels) - 1}")
    units_ND = normalize(embeddings)
    cosines_NK, items_NK = nearest(units_ND, units_ND, neighbours, torch.arange(len(labels), device=units_ND.device))
    weights_NK, votes_NK = cosines_NK.clamp_min(0), labels[items_NK]
    # Sum weights per neighbour position, so that no row is as long as the number of classes.
    for_each_NK = (weights_NK[:, None] * (votes_NK[:, None] == votes_NK[:, :, None])).sum(2)
    vote_N = votes_NK.gather(1, for_each_NK.argmax(1, keepdim=True)).squeeze(1)
    own_N = (weights_NK * (votes_NK == labels[:, None])).sum(1)
    return Doubts(own_N / weights_NK.sum(1).clamp_min(1e-12), vote_N)


def near_duplicates(embeddings: Float[Tensor, "N D"], at_least: float = 0.98) -> Int[Tensor, "pairs 2"]:
    """Pairs of samples with a cosine of at least `at_least`, the most similar first, each pair once."""
    units_ND = normalize(embeddings)
    pairs, cosines = [], []
    with full_precision(units_ND.device):
        for start, stop in block_starts(len(units_ND), DEFAULT_MEMORY_BUDGET // (SIMILARITY_BYTES * len(units_ND))):
            sim_BN = product(units_ND[start:stop], units_ND)
            row, column = (sim_BN >= at_least).triu(start + 1).nonzero(as_tuple=True)
            pairs.append(torch.stack([row + start, column], dim=1))
            cosines.append(sim_BN[row, column])
    order = torch.cat(cosines).argsort(descending=True, stable=True)
    return torch.cat(pairs)[order]
