"""Contextual loss."""

from jaxtyping import Bool, Float
from torch import Tensor

from levelfield.core.numerics import inner_products, unit
from levelfield.losses.base import Choice, Labels, MetricLoss, Points, RefLabels, RefPoints, Scalar
from levelfield.losses.pairs import cosines, pair_weights, pull_and_push

# Slope of a step function in the backward pass, as in the authors' code.
SLOPE = 10.0


class ContextualLoss(MetricLoss):
    """Gives samples of a class the same neighbours, and adds a contrastive loss of cosines.

        L = la (1/B^2) sum_{i != j} (y_ij - w_ij)^2 + (1 - la - ga) C + ga (mean_ij s_ij - q)^2
        w_ij = (J_ij + J_ji)/2    J_ij = mean_{l in R(i)} W_lj
        W_ij = [j in N_k(i)] ( #(N_k(i) and N_k(j)) / #N_k(i) + #(rest of i and rest of j) / #(rest of i) ) / 2
        N_k(i) = {j: d_ij^2 <= d_i(k)^2 + e}    R(i) = {j in N_k/2(i): i in N_k/2(j)}
        C = NZ_{(i,p)} [m_pos - s_ip]+ + NZ_{(i,n)} [s_in - m_neg]+

    The third term pulls the mean cosine to q. y is 1 for two samples of a class, s the cosine, d the distance. d_i(k)
    is the k-th smallest distance from i, and i itself is the first. The rest of i is everything outside N_k(i). NZ is
    the mean over the terms above 0. Whether j is in N(i) has a slope of 10 with respect to -d_ij^2 instead of a
    derivative. d_i(k) and the sizes of N_k and rest are constants. The loss follows the authors' code. Takes no miner
    and no `ref_emb`.

    Args:
        k: neighbours, including the sample itself, at least 2; set it to the samples of a class in a batch.
        epsilon: e, at least 0.
        pos_margin: m_pos, in units of cosine.
        neg_margin: m_neg, in units of cosine.
        context_weight: la, at least 0.
        similarity_weight: ga, at least 0; la + ga at most 1.
        mean_similarity: q.

    Cost: B^3. When: noisy labels; batches of some hundred samples.
    Paper: Liao et al. 2023, "Supervised Metric Learning to Rank for Retrieval via Contextual Similarity Optimization",
    arXiv:2210.01908.
    """

    def __init__(
        self,
        k: int = 4,
        epsilon: float = 0.05,
        pos_margin: float = 0.75,
        neg_margin: float = 0.6,
        context_weight: float = 0.4,
        similarity_weight: float = 0.1,
        mean_similarity: float = 0.25,
    ) -> None:
        super().__init__()
        if k < 2 or epsilon < 0:
            raise ValueError(f"k={k} must be at least 2 and epsilon={epsilon} at least 0")
        if min(context_weight, similarity_weight) < 0 or context_weight + similarity_weight > 1:
            raise ValueError(
                f"context_weight={context_weight} and similarity_weight={similarity_weight} must be at least 0 and "
                "together at most 1"
            )
        self.k = k
        self.epsilon = epsilon
        self.pos_margin = pos_margin
        self.neg_margin = neg_margin
        self.context_weight = context_weight
        self.similarity_weight = similarity_weight
        self.mean_similarity = mean_similarity

    def compute(
        self, embeddings: Points, labels: Labels, indices_tuple: Choice, ref_emb: RefPoints, ref_labels: RefLabels
    ) -> Scalar:
        if indices_tuple is not None or ref_emb is not None:
            raise ValueError("ContextualLoss compares neighbours in the batch; it takes no miner and no ref_emb")
        if len(embeddings) == 1:
            return embeddings.new_zeros(())
        positives, negatives = pair_weights(labels, None, None, dtype=embeddings.dtype)
        points = unit(embeddings)
        matrix = cosines(points, points)
        near, nearer = self.neighbours(matrix)
        alike = contextual_similarities(matrix, near, nearer)
        context = (positives * (1 - alike).square() + negatives * alike.square()).mean()
        contrast = pull_and_push(-matrix, positives, negatives, -self.pos_margin, -self.neg_margin)
        spread = (matrix.mean() - self.mean_similarity).square()
        rest = 1 - self.context_weight - self.similarity_weight
        return self.context_weight * context + rest * contrast + self.similarity_weight * spread

    def neighbours(self, matrix: Float[Tensor, "N N"]) -> tuple[Bool[Tensor, "N N"], Bool[Tensor, "N N"]]:
        """Whether j is in N_k(i), and whether it is in N_k/2(i), from the cosines."""
        k = min(self.k, len(matrix))
        nearness = 2 * matrix.detach() - 2  # -d^2
        levels = nearness.topk(k, dim=1).values - self.epsilon
        return nearness >= levels[:, k - 1 :], nearness >= levels[:, max(1, k // 2) - 1, None]


def contextual_similarities(
    matrix: Float[Tensor, "N N"], near: Bool[Tensor, "N N"], nearer: Bool[Tensor, "N N"]
) -> Float[Tensor, "N N"]:
    """w, from the cosines and `neighbours`."""
    slope = SLOPE * 2 * (matrix - matrix.detach())
    in_N, in_half = near + slope, nearer + slope
    sizes = in_N.sum(1)
    size_N1 = sizes.detach()[:, None]
    shared = inner_products(in_N, in_N)
    neither = len(matrix) - sizes[:, None] - sizes + shared
    weights = (shared / size_N1 + neither / (len(matrix) - size_N1).clamp_min(1)) / 2 * in_N
    mutual = in_half * in_half.mT
    jaccard = inner_products(mutual, weights.mT) / mutual.sum(1, keepdim=True)
    return (jaccard + jaccard.mT) / 2
