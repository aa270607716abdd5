"""Spherical embedding constraint."""

import torch
from jaxtyping import Float
from torch import Tensor

from levelfield.regularizers.base import Regularizer


class SphericalConstraint(Regularizer):
    """Gives raw embeddings the same length, so that an optimizer step turns all of them equally.

        R = mean_i (norm(x_i) - m)^2
        m = mean_i norm(x_i)

    x are the embeddings before normalisation. The gradient of a cosine is in proportion to 1 / norm(x), so short
    embeddings turn faster than long ones. The learner needs `normalize=False`; losses of cosines normalise the
    embeddings themselves.

    Cost: B D. When: the norms of raw embeddings differ much (`train/embedding_norm_std`).
    Paper: Zhang et al. 2020, "Deep Metric Learning with Spherical Embedding", arXiv:2011.02785.

    Differs: the authors' script has a weight of 1.0; the shipped method has 0.1.
    """

    of = "raw_embeddings"

    def penalty(self, points: Float[Tensor, "N D"]) -> Float[Tensor, ""]:
        norms = torch.linalg.vector_norm(points, dim=1)
        return (norms - norms.mean()).square().mean()
