"""Labels: an integer for each sample, or the set of its labels as a row of a boolean matrix.

Shapes: N and M samples, L labels.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Labels = Int[Tensor, " N"]
LabelSets = Bool[Tensor, "N L"]


def num_shared(labels: LabelSets, others: LabelSets) -> Float[Tensor, "N M"]:
    """How many labels two samples share; exact in any precision of products, as it sums ones and zeros."""
    return labels.float() @ others.float().mT


def matches(
    labels: Labels | LabelSets, others: Labels | LabelSets | None = None, places: Int[Tensor, " N"] | None = None
) -> Bool[Tensor, "N M"]:
    """Which samples share a label. An empty set matches nothing, except that each sample matches itself.

    Args:
        labels: of the samples.
        others: of those to compare with; None compares the samples among themselves.
        places: where each sample is among the others, if it is there.
    """
    if labels.ndim == 1:
        return labels[:, None] == (labels if others is None else others)[None, :]
    same = num_shared(labels, labels if others is None else others) > 0
    if others is None:
        return same.fill_diagonal_(True)
    return same if places is None else same.scatter_(1, places[:, None], True)


def check_labels(
    labels: Tensor, count: int, name: str = "labels", of: str = "embeddings", takes_sets: bool = False
) -> None:
    """Raise ValueError unless `labels`, called `name`, are `count` integers or, if taken, as many label sets."""
    is_whole = not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool)
    is_sets = labels.ndim == 2 and labels.dtype == torch.bool
    if not ((labels.ndim == 1 and is_whole) or (is_sets and takes_sets)):
        taken = ", or a boolean (N, L) one of label sets" if takes_sets else ""
        refused = ": no label sets are taken here" if is_sets else ""
        given = f"{str(labels.dtype).removeprefix('torch.')} of shape {tuple(labels.shape)}"
        raise ValueError(f"{name} must be an integer (N,) tensor{taken}, not {given}{refused}")
    if len(labels) != count:
        raise ValueError(f"{len(labels)} {name} for {count} {of}; give each row its own")


def check_alike(labels: Tensor, others: Tensor, name: str, of_labels: str = "labels") -> None:
    """Raise ValueError unless both are integers, or sets of equally many labels; `name` is that of the others."""
    if labels.shape[1:] != others.shape[1:]:
        kinds = [f"sets of {each.shape[1]} labels" if each.ndim == 2 else "integers" for each in (others, labels)]
        raise ValueError(f"{name} are {kinds[0]} but {of_labels} are {kinds[1]}; they must agree")
