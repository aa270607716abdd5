"""Recall@k surrogate loss."""

import torch

from levelfield.core.numerics import unit
from levelfield.losses.base import Choice, Labels, Points, RefLabels, RefPoints, Scalar, check_above_0
from levelfield.losses.pairs import PairLoss, Pairs, cosines, mean_over, pair_weights
from levelfield.losses.soft_ranks import SigmoidStep, levels_of_positives, soft_counts
from levelfield.losses.triplets import positive_pairs


class RecallAtKLoss(PairLoss):
    """One minus the recall among an anchor's k nearest, for several k, with sigmoids for steps.

        L = mean_{i with P(i)} mean_{k in K} 1 - (1/#P(i)) sum_{p in P(i)} G_1(k - R_ip)
        R_ip = 1 + sum_{j != i, j != p} G_2(s_ij - s_ip)    G_t(x) = 1 / (1 + e^(-x/T_t))

    s is the cosine, j any other sample. The loss is not 0 at a perfect ranking: for k below #P the recall is below 1.

    Args:
        recall_at: K, whole numbers from 1.
        recall_temperature: T_1, in ranks, above 0.
        rank_temperature: T_2, in units of cosine, above 0.
        similarity_mixup: SiMix: each pair of samples i, j of a class adds a sample a u_i + (1 - a) u_j to the batch. It
            is not normalised again, so its similarities are mixtures of theirs. a is uniform in [0, 1] (torch's global
            generator). Takes no miner and no `ref_emb`.

    For batches larger than memory use the callback `GradientCaching`, as the paper's second pass.

    Cost: pairs x B, computed some rows at a time; with `similarity_mixup` of the batch and its pairs. When: recall
    matters most; large batches.
    Paper: Patel et al. 2022, "Recall@k Surrogate Loss with Large Batches and Similarity Mixup", arXiv:2108.11179.

    Differs: the authors' code counts the query in its own ranking, so every rank is one higher. It has min(k, #P)
    instead of #P, which gives small k more weight.

    Not for `torch.compile(fullgraph=True)`: the largest number of positives of an anchor sets the shapes.
    """

    count_repeats = False

    def __init__(
        self,
        recall_at: tuple[int, ...] = (1, 2, 4, 8, 16),
        recall_temperature: float = 1.0,
        rank_temperature: float = 0.01,
        similarity_mixup: bool = False,
    ) -> None:
        super().__init__()
        check_above_0(recall_temperature=recall_temperature, rank_temperature=rank_temperature)
        if not recall_at or min(recall_at) < 1:
            raise ValueError(f"recall_at={recall_at} must be whole numbers from 1, one or more")
        self.recall_at = recall_at
        self.recall_temperature = recall_temperature
        self.rank_temperature = rank_temperature
        self.similarity_mixup = similarity_mixup

    def compute(
        self, embeddings: Points, labels: Labels, indices_tuple: Choice, ref_emb: RefPoints, ref_labels: RefLabels
    ) -> Scalar:
        if not self.similarity_mixup:
            return super().compute(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        if indices_tuple is not None or ref_emb is not None:
            raise ValueError("similarity_mixup=True mixes the samples of the batch; it takes no miner and no ref_emb")
        points, dtype = unit(embeddings), embeddings.dtype
        i, j = positive_pairs(pair_weights(labels, None, None, dtype)[0].triu())
        shares = torch.rand(len(i), 1, dtype=dtype, device=points.device)
        points = torch.cat([points, shares * points[i] + (1 - shares) * points[j]])
        return self.pair_loss(cosines(points, points), *pair_weights(torch.cat([labels, labels[i]]), None, None, dtype))

    def pair_loss(self, matrix: Pairs, positives: Pairs, negatives: Pairs) -> Scalar:
        levels, present = levels_of_positives(matrix, positives)
        step = SigmoidStep(self.rank_temperature)
        ranks = 0.5 + soft_counts(matrix, levels, positives + negatives, step)  # 1 - G(0), which the sum contains
        hits = torch.stack([((k - ranks) / self.recall_temperature).sigmoid() for k in self.recall_at]).mean(0)
        count = present.sum(1)
        return mean_over(1 - (present * hits).sum(1) / count.clamp_min(1), (count > 0).to(matrix.dtype))
