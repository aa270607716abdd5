"""Spherical embedding constraint."""

import torch
from jaxtyping import Float
from torch import Tensor

from levelfield.regularizers.base import Regularizer


class SphericalConstraint(Regularizer):
    """Raw embeddings of one length, so that a step of the optimizer turns all of them alike.

        R = mean_i (norm(x_i) - m)^2
        m = mean_i norm(x_i)

    x are the embeddings before they are normalised: the gradient of a cosine is in proportion to 1 / norm(x), so that
    short embeddings turn faster than long ones. The learner takes it with `normalize=False`; losses of cosines
    normalise by themselves.

    Cost: B D. When: the norms of raw embeddings differ much (`train/embedding_norm_std`, docs/tracking.md).
    Paper: Zhang et al. 2020, "Deep Metric Learning with Spherical Embedding", arXiv:2011.02785.

    Differs: the authors' script has a weight of 1.0; the shipped method has 0.1.
    """

    of = "raw_embeddings"

    def penalty(self, points: Float[Tensor, "N D"]) -> Float[Tensor, ""]:
        norms = torch.linalg.vector_norm(points, dim=1)
        return (norms - norms.mean()).square().mean()
