"""How well similarities separate pairs of one class from pairs of two classes, over all thresholds."""

import numpy as np
import torch
from jaxtyping import Float, Int

from levelfield.metrics.distances import full_precision, normalize, product
from levelfield.metrics.table import auroc
from levelfield.metrics.verification import Roc
from levelfield.seeds import seed_of

MOST_SAMPLES = 1000
FEWEST_OF_A_CLASS = 5


def draw_samples(labels: Int[np.ndarray, " samples"]) -> Int[np.ndarray, " drawn"]:
    """Sorted positions of at most 1,000 samples: the same number (5 or more) per class, from as many classes as fit."""
    generator = np.random.default_rng(seed_of("similarities"))
    classes = generator.permutation(np.unique(labels))
    each = max(FEWEST_OF_A_CLASS, MOST_SAMPLES // len(classes))
    drawn: list[int] = []
    for label in classes:
        members = np.flatnonzero(labels == label)
        chosen = generator.permutation(members)[:each]
        if len(drawn) + len(chosen) > MOST_SAMPLES:
            break
        drawn += chosen.tolist()
    return np.array(sorted(drawn), dtype=np.int64)


def pair_similarities(
    embeddings: Float[torch.Tensor, "samples embedding"], labels: Int[np.ndarray, " samples"]
) -> tuple[Float[np.ndarray, " same"], Float[np.ndarray, " other"]]:
    """Cosines of the pairs within a class, and of the pairs of two classes, each pair once."""
    unit = normalize(embeddings)
    with full_precision(unit.device):
        similarities = product(unit, unit).numpy()
    above = np.triu_indices(len(labels), k=1)
    cosines, same = similarities[above], (labels[:, None] == labels)[above]
    return cosines[same], cosines[~same]


def separation(same: Float[np.ndarray, " same"], other: Float[np.ndarray, " other"]) -> float:
    """Probability that a pair of one class is more similar than a pair of two classes; ties count half.

    This is the area under the ROC curve: 0.5 is chance, 1 means that the two histograms do not overlap.

    Raises:
        ValueError: no pair of one kind.

    Source: Hanley and McNeil 1982, "The meaning and use of the area under a ROC curve", Radiology 143, 29-36.
    """
    if not len(same) or not len(other):
        raise ValueError(f"{len(same)} pairs of one class and {len(other)} of two: both are needed")
    levels, places = np.unique(np.concatenate([same, other]), return_inverse=True)
    same_T, other_T = (np.bincount(each, minlength=len(levels))[::-1] for each in np.split(places, [len(same)]))
    return auroc(Roc.of(same_T, other_T))
