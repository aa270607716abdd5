"""Structured clustering loss."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, no_grad

from levelfield.core.numerics import inner_products, unit
from levelfield.losses.base import Choice, Labels, MetricLoss, Points, RefLabels, RefPoints, Scalar
from levelfield.losses.pairs import unit_distances


class StructuredClusteringLoss(MetricLoss):
    """The true clustering must score better than any other, by a margin that grows with their disagreement.

        L = [ max_S ( F(S) + gamma (1 - NMI(assignment to S, y)) ) - sum_k max_{j in k} -sum_{i in k} d_ij ]+
        F(S) = -sum_i min_{j in S} d_ij

    F is the score of facility location. S has as many samples of the batch as there are classes in it. They are chosen
    greedily, then by rounds that swap a medoid with a member of its cluster. NMI is divided by the geometric mean of
    the entropies. S and the assignment are constants for the gradient. d is the distance of unit vectors. The loss is a
    sum over the batch, not a mean. Takes no miner and no `ref_emb`.

    Args:
        gamma: weight of the margin 1 - NMI.
        pam_iterations: rounds of swapping.
        gamma_decay: factor on gamma every `decay_steps` steps, in (0, 1]; 0.94 in Oh Song et al., who do not say how
            often. Steps are the calls in training; a checkpoint holds the count.
        decay_steps: batches between two decays.

    Cost: C B^2 + C^3 B. When: comparison with older work; slow, as the papers warn, beyond a few hundred samples.
    Papers: Oh Song et al. 2017, "Deep Metric Learning via Facility Location", arXiv:1612.01213; Fehervari et al. 2019,
    arXiv:1911.12528 (Eq 10 to 12).

    Not for `torch.compile(fullgraph=True)`: the number of classes in the batch sets the shapes.
    """

    steps: Tensor

    search_space = {"gamma": {"start": 1.0, "low": 0.01, "high": 100.0, "scale": "log"}}

    def __init__(
        self, gamma: float = 1.0, pam_iterations: int = 5, gamma_decay: float = 1.0, decay_steps: int = 1
    ) -> None:
        super().__init__()
        if not 0 < gamma_decay <= 1:
            raise ValueError(f"gamma_decay={gamma_decay} must lie in (0, 1]")
        if decay_steps < 1:
            raise ValueError(f"decay_steps={decay_steps} must be at least 1")
        self.gamma = gamma
        self.pam_iterations = pam_iterations
        self.gamma_decay = gamma_decay
        self.decay_steps = decay_steps
        if gamma_decay < 1:
            self.register_buffer("steps", torch.tensor(0))

    def compute(
        self, embeddings: Points, labels: Labels, indices_tuple: Choice, ref_emb: RefPoints, ref_labels: RefLabels
    ) -> Scalar:
        if indices_tuple is not None or ref_emb is not None:
            raise ValueError("StructuredClusteringLoss clusters the batch and takes neither a miner nor ref_emb")
        points = unit(embeddings)
        dist_NN = unit_distances(points, points)
        # The search looks at hundreds of values, for each of which the CPU would wait for a GPU. An embedding that is
        # not finite is far from all.
        fixed_NN, class_of = dist_NN.detach().nan_to_num(2.0).cpu(), labels.cpu().unique(return_inverse=True)[1]
        gamma, medoids = self.current_gamma, self.search(fixed_NN, class_of)
        margin = gamma * (1 - float(_nmi(_nearest(fixed_NN, medoids)[None], class_of, len(medoids))))
        class_of, medoids = torch.cat([class_of, medoids]).to(labels.device).split([len(labels), len(medoids)])
        members_NC = class_of[:, None] == torch.arange(len(medoids), device=labels.device)
        own_cost_NC = inner_products(dist_NN, members_NC.T.to(dist_NN.dtype))  # if j were the medoid of its class
        true_score = -own_cost_NC.masked_fill(~members_NC, torch.inf).amin(0).sum()
        assigned = dist_NN[:, medoids].amin(1)
        if self.training and self.gamma_decay < 1:
            self.steps += 1
        return (margin - assigned.sum() - true_score).clamp_min(0)

    @property
    def current_gamma(self) -> float:
        """The gamma of the next step."""
        if self.gamma_decay == 1:
            return self.gamma
        return self.gamma * self.gamma_decay ** (int(self.steps) // self.decay_steps)

    @no_grad()
    def search(self, dist: Float[Tensor, "N N"], class_of: Int[Tensor, " N"]) -> Int[Tensor, " C"]:
        """S: greedy, then rounds of swaps, both by the score F(S) + gamma (1 - NMI)."""
        samples, gamma = torch.arange(len(dist), device=dist.device), self.current_gamma
        medoids = samples[:0]
        for _ in range(int(class_of.max()) + 1):
            free = samples[~torch.isin(samples, medoids)]
            scores = _scores(dist, class_of, torch.cat([medoids.expand(len(free), -1), free[:, None]], 1), gamma)
            medoids = torch.cat([medoids, free[scores.argmax()][None]])
        for _ in range(self.pam_iterations):
            before = medoids.clone()
            for k in range(len(medoids)):
                members = samples[_nearest(dist, medoids) == k]
                if len(members) == 0:
                    continue  # if medoids coincide, the first has all members
                swapped = medoids.repeat(len(members), 1)
                swapped[:, k] = members
                medoids[k] = members[_scores(dist, class_of, swapped, gamma).argmax()]
            if torch.equal(before, medoids):
                break
        return medoids


def _scores(
    dist: Float[Tensor, "N N"], class_of: Int[Tensor, " N"], sets: Int[Tensor, "S K"], gamma: float
) -> Float[Tensor, " S"]:
    """F + gamma (1 - NMI) of each row of medoids."""
    nearest_SN, which_SN = dist[:, sets].permute(1, 0, 2).min(2)
    return -nearest_SN.sum(1) + gamma * (1 - _nmi(which_SN, class_of, sets.shape[1]))


def _nearest(dist: Float[Tensor, "N N"], medoids: Int[Tensor, " K"]) -> Int[Tensor, " N"]:
    return dist[:, medoids].argmin(1)


@no_grad()
def _nmi(clusters: Int[Tensor, "S N"], class_of: Int[Tensor, " N"], num_clusters: int) -> Float[Tensor, " S"]:
    """Mutual information over the geometric mean of the entropies; 1 if neither has entropy, 0 if one has none."""
    C = int(class_of.max()) + 1
    ones = torch.ones_like(clusters, dtype=torch.float64)
    cells = ones.new_zeros(len(clusters), num_clusters * C).scatter_add_(1, clusters * C + class_of, ones)
    joint_SKC = cells.unflatten(1, (num_clusters, C)) / clusters.shape[1]
    entropy_k, entropy_c, entropy_kc = (
        torch.special.entr(p).flatten(1).sum(1) for p in (joint_SKC.sum(2), joint_SKC.sum(1), joint_SKC)
    )
    norm = (entropy_k * entropy_c).sqrt()
    nmi = (entropy_k + entropy_c - entropy_kc) / torch.where(norm > 0, norm, 1.0)
    return torch.where((entropy_k == 0) & (entropy_c == 0), 1.0, nmi)
