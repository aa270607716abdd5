"""The Reality Check's toy examples: what Recall@1, NMI and F1 do not see, and MAP@R does (Figure 1, Table 3)."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from levelfield.metrics import partition_scores, retrieval_metrics
from levelfield.metrics.clustering import k_means
from levelfield.seeds import seed_of

# Two classes on a strip of height 1: the left ends of each class's blocks, and how wide a block is. The paper's points
# are in its picture alone; these have what its text says of them.
BLOCKS: dict[str, tuple[tuple[tuple[float, ...], tuple[float, ...]], float]] = {
    "a": (((-3.0, -1.0), (0.0, 2.0)), 1.0),  # each class in two pieces, one of them touching the other class
    "b": (((-2.0,), (0.0,)), 2.0),  # each class in one piece; the two touch
    "c": (((-3.0,), (1.0,)), 2.0),  # each class in one piece, far from the other
}
POINTS_OF_A_CLASS = 1000
RETRIEVAL = ("precision_at_1", "r_precision", "map_at_r")
# Table 3: which of the 10 nearest of a query are of its class, of which there are 10 others.
CORRECT_PLACES = ((1,), (1, 10), (1, 2), tuple(range(1, 11)))


def toy_embeddings(
    panel: str, points: int = POINTS_OF_A_CLASS
) -> tuple[Float[Tensor, "items 2"], Int64[Tensor, " items"]]:
    """Points of the plane drawn evenly over the blocks of two classes.

    Args:
        panel: `a`, `b` or `c` of Figure 1.
        points: of a class.

    Returns:
        (2 * points, 2) embeddings, which are not normalised, and their labels, 0 and 1.
    """
    blocks, width = BLOCKS[panel]
    draw = np.random.default_rng(seed_of("toy", panel))
    classes = []
    for lefts in blocks:
        left = np.repeat(lefts, points // len(lefts))
        classes.append(np.stack([left + width * draw.random(len(left)), draw.random(len(left))], axis=1))
    labels = torch.arange(2).repeat_interleave(len(classes[0]))
    return torch.tensor(np.concatenate(classes), dtype=torch.float32), labels


def toy_scores(panel: str, points: int = POINTS_OF_A_CLASS) -> dict[str, float]:
    """Precision@1 (their Recall@1), R-precision, MAP@R, NMI and F1 of a toy example, by Euclidean distance."""
    embeddings, labels = toy_embeddings(panel, points)
    found = retrieval_metrics(embeddings, labels, metrics=RETRIEVAL, distance="euclidean")
    clusters = k_means(embeddings, num_clusters=2, seed=0, method="exact")  # as they lie: nothing is normalised
    by_clusters = partition_scores(clusters, labels, metrics=("nmi", "f1"))
    return {**{name: float(found[name]) for name in RETRIEVAL}, **by_clusters}


def hypothetical_scores(correct: Sequence[int]) -> dict[str, float]:
    """The scores of one query of Table 3, whose class has 10 others.

    Args:
        correct: The places, from 1, of those among its 10 nearest that are of its class; the rest of them lies beyond.

    Returns:
        Precision@1, R-precision and MAP@R as fractions.

    Example:
        >>> round(hypothetical_scores((1, 10))["map_at_r"], 6)
        0.12
    """
    beyond = range(11, 21 - len(correct))
    labels = torch.tensor([int(place in correct or place in beyond) for place in range(1, 21)])
    gallery = torch.arange(1.0, 21.0)[:, None]  # on a line, so that the place is the distance
    query, label = torch.zeros(1, 1), torch.ones(1, dtype=torch.long)
    found = retrieval_metrics(query, label, gallery, labels, metrics=RETRIEVAL, distance="euclidean")
    return {name: float(found[name]) for name in RETRIEVAL}
