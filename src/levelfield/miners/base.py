"""The base class of the miners. N embeddings, M references (the embeddings if `ref_emb` is None), D dimensions."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, autocast, nn, no_grad, promote_types
from torch.nn.functional import threshold

from levelfield.core.init_args import KeepsArguments
from levelfield.core.labels import Labels, LabelSets, check_alike, check_labels, matches
from levelfield.core.numerics import inner_products, rounding_of, unit

# Types of the arguments of `mine`, for subclasses.
Matrix = Float[Tensor, "N M"]
Mask = Bool[Tensor, "N M"]


class Miner(KeepsArguments, nn.Module):
    """Chooses pairs or triplets of a batch; subclasses write `mine(matrix, positives, negatives)`.

    Everything is float32 (float64 stays float64), even under autocast, and without gradient. Random choices use torch's
    global generator, the CPU's or the GPU's.
    """

    @no_grad()
    def forward(
        self,
        embeddings: Float[Tensor, "N D"],
        labels: Labels | LabelSets,
        ref_emb: Float[Tensor, "M D"] | None = None,
        ref_labels: Int[Tensor, " M"] | Bool[Tensor, "M L"] | None = None,
        places: Int[Tensor, " N"] | None = None,
    ) -> tuple[Tensor, ...]:
        """Indices of triplets (a, p, n) or of pairs (a1, p, a2, n); p and n index `ref_emb` where it is given.

        Args:
            places: Where each embedding is in `ref_emb`, if it is there, so that it is not its own positive.

        Raises:
            ValueError: a shape or type that does not fit.
        """
        if (ref_emb is None) != (ref_labels is None):
            raise ValueError("ref_emb and ref_labels go together; give both or neither")
        _check(embeddings, labels)
        dtype = promote_types(embeddings.dtype, torch.float32)
        with autocast(embeddings.device.type, enabled=False):
            anchors = unit(embeddings.to(dtype))
            others = anchors
            if ref_emb is not None and ref_labels is not None:
                _check(ref_emb, ref_labels, "ref_emb", "ref_labels")
                check_alike(labels, ref_labels, "ref_labels")
                others = unit(ref_emb.to(dtype))
            same = matches(labels, ref_labels, places)
            positives = same.clone()
            if ref_emb is None:
                positives.fill_diagonal_(False)
            elif places is not None:
                positives.scatter_(1, places[:, None], False)
            return self.mine(self.matrix(anchors, others), positives, ~same)

    def matrix(self, anchors: Float[Tensor, "N D"], others: Float[Tensor, "M D"]) -> Float[Tensor, "N M"]:
        """The matrix for `mine`, from unit vectors: their cosines, unless a subclass overrides it."""
        return inner_products(anchors, others)

    def mine(self, matrix: Matrix, positives: Mask, negatives: Mask) -> tuple[Tensor, ...]:
        """Choose from `matrix`, given which pairs are positive and which negative."""
        raise NotImplementedError


def distances(anchors: Float[Tensor, "N D"], others: Float[Tensor, "M D"]) -> Float[Tensor, "N M"]:
    """Distances of unit vectors, in [0, 2]; exactly 0 between those that coincide."""
    return threshold(2 - 2 * inner_products(anchors, others), rounding_of(anchors), 0.0).sqrt()


def _check(embeddings: Tensor, labels: Tensor, name: str = "embeddings", labels_name: str = "labels") -> None:
    if embeddings.ndim != 2 or len(embeddings) == 0:
        raise ValueError(f"{name} must be (N, D) with N > 0, not {tuple(embeddings.shape)}")
    check_labels(labels, len(embeddings), labels_name, name, takes_sets=True)
