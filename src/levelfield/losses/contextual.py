"""Contextual loss."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from levelfield.losses.base import Choice, Labels, MetricLoss, Points, RefLabels, RefPoints
from levelfield.losses.pairs import cosines, pair_weights, pull_and_push
from levelfield.numerics import inner_products, unit

# Of a step in the backward pass, as in the authors' code.
SLOPE = 10.0
# From so many samples on, of whose pairs no larger share are neighbours, sparse matrices are faster on a CPU.
SPARSE_FROM, SPARSE_SHARE = 384, 1 / 32


class ContextualLoss(MetricLoss):
    """Samples of a class to have the same neighbours, beside a contrastive loss of cosines and a pull on their mean.

        L = la (1/B^2) sum_{i != j} (y_ij - w_ij)^2 + (1 - la - ga) C + ga (mean_ij s_ij - q)^2
        w_ij = (J_ij + J_ji)/2    J_ij = mean_{l in R(i)} W_lj
        W_ij = [j in N_k(i)] ( #(N_k(i) and N_k(j)) / #N_k(i) + #(rest of i and rest of j) / #(rest of i) ) / 2
        N_k(i) = {j: d_ij^2 <= d_i(k)^2 + e}    R(i) = {j in N_k/2(i): i in N_k/2(j)}
        C = NZ_{(i,p)} [m_pos - s_ip]+ + NZ_{(i,n)} [s_in - m_neg]+

    y is 1 for two of a class, s the cosine, d the distance, d_i(k) the k-th least of i's, itself the first; the rest of
    i is all that is not in N_k(i); NZ is the mean over the terms above 0. Whether j is in N(i) has the slope 10 with
    respect to -d_ij^2 in the place of a derivative; d_i(k) and the sizes of N_k and rest are constants, as in the
    authors' code, whose form this is. Takes no miner and no `ref_emb`. With (N, D) embeddings and (N,) labels it gives
    a scalar.

    Args:
        k: neighbours, itself among them, from 2; the samples of a class in a batch.
        epsilon: e, at least 0.
        pos_margin: m_pos, in units of cosine.
        neg_margin: m_neg, in units of cosine.
        context_weight: la, at least 0.
        similarity_weight: ga, at least 0; la + ga at most 1.
        mean_similarity: q.

    Cost: that of its contrastive part where few samples are near (on a CPU, at most a 32nd of 384 or more); else
    B^3: products of matrices of the batch. When: noisy labels; batches of some hundreds.
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
    ) -> Float[Tensor, ""]:
        if indices_tuple is not None or ref_emb is not None:
            raise ValueError("ContextualLoss compares neighbours in the batch; it takes no miner and no ref_emb")
        if len(embeddings) == 1:
            return embeddings.new_zeros(())
        positives, negatives = pair_weights(labels, None, None, dtype=embeddings.dtype)
        points = unit(embeddings)
        matrix = cosines(points, points)
        near, nearer = self.neighbours(matrix)
        if _are_few(near):
            context = _ContextOfFew.apply(matrix, near, nearer, positives)
        else:
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


def _are_few(near: Bool[Tensor, "N N"]) -> bool:
    """Whether sparse matrices pay; never where the answer would wait for a device, or split a graph."""
    if torch.compiler.is_compiling() or near.device.type != "cpu" or len(near) < SPARSE_FROM:
        return False
    return bool(near.count_nonzero() <= SPARSE_SHARE * near.numel())


class _ContextOfFew(torch.autograd.Function):
    """(1/B^2) sum_{i != j} (y_ij - w_ij)^2 and the derivative that autograd would find, by sparse matrices.

    A, B, M: who is in N_k, in N_k/2, and mutually; S: #(N_k(i) and N_k(j)). One term of the derivative is the same
    along a row; the others are 0 where no few steps from neighbour to neighbour lead from one sample to the other.
    """

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, near: Tensor, nearer: Tensor, positives: Tensor) -> Tensor:
        from scipy.sparse import csr_array  # slow to import

        def ones(rows: Tensor, columns: Tensor) -> Any:
            places = rows.int().numpy(), columns.int().numpy()
            return csr_array((np.ones(len(rows), positives.numpy().dtype), places), matrix.shape)

        N = len(matrix)
        y, places = ones(*positives.nonzero(as_tuple=True)), near.nonzero()
        is_nearer, is_nearer_too = nearer[places.unbind(1)], nearer[places.flip(1).unbind(1)]
        A, B, M = (ones(*each.unbind(1)) for each in (places, places[is_nearer], places[is_nearer & is_nearer_too]))
        sizes, mutual = A.sum(1).clip(1), M.sum(1).clip(1)  # 0 where cosines are not numbers
        of_neither = 0.5 / (N - sizes).clip(1)
        of_shared = 0.5 / sizes + of_neither
        S = A @ A.T

        def weighed(by: Any) -> Any:
            """by_ij times what A_ij is times in W_ij."""
            rest = by.copy()
            rest.data *= N - np.repeat(sizes, np.diff(by.indptr)) - sizes[by.indices]
            return _rows(by.multiply(S), of_shared) + _rows(rest, of_neither)

        W = weighed(A)
        J = _rows(M @ W, 1 / mutual)
        missed = y - (J + J.T) / 2
        missed.data[missed.indices == np.repeat(np.arange(N), np.diff(missed.indptr))] = 0
        of_J = _rows(missed * (-2 / N**2), 1 / mutual)
        of_W, of_M, of_mutual = M @ of_J, of_J @ W.T, of_J.multiply(J).sum(1)
        of_each = of_W.multiply(A)
        of_S, of_rest = _rows(of_each, of_shared), _rows(of_each, of_neither)
        of_A = weighed(of_W) + (of_S + of_S.T) @ A
        of_B = B.T.multiply(of_M + of_M.T) - _rows(B.T, of_mutual) - _rows(B, of_mutual).T
        slopes = (of_A + of_B).toarray() - (of_rest.sum(1) + of_rest.sum(0))[:, None]
        ctx.save_for_backward(torch.from_numpy(slopes))
        return matrix.new_tensor((missed.data**2).sum() / N**2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (slopes,) = ctx.saved_tensors
        return slopes * (2 * SLOPE * gradient), None, None, None


def _rows(matrix: Any, factors: np.ndarray) -> Any:
    """Each row of a sparse matrix times a factor."""
    rows = matrix.tocsr(copy=True)
    rows.data *= np.repeat(factors, np.diff(rows.indptr))
    return rows
