"""N-pairs loss."""

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from levelfield.core.numerics import inner_products
from levelfield.losses.base import Choice, Labels, Points, RefLabels, RefPoints, Scalar, check_above_0
from levelfield.losses.pairs import PairLoss, as_pairs, pair_weights


class NPairsLoss(PairLoss):
    """Each anchor must find its positive among one positive of every class.

        L = mean_k CE( (u_ak . u_pl / T)_l, k )  +  l2_reg (mean_k norm(x_ak)^2 + mean_k norm(x_pk)^2)

    (a_k, p_k) is the first positive pair of class k in the batch, or in the miner's choice. A class without one is left
    out. u are unit vectors, x the embeddings before normalisation.

    Args:
        l2_reg: weight of the squared norms; Fehervari et al. use 5e-4.
        symmetric: average with the loss of the reversed pairs.
        normalize: False takes u = x, as the paper and Fehervari et al. do.
        temperature: T, above 0. The paper has none (T = 1); unit vectors hardly train with that.

    Cost: C^2. When: two samples a class, raw embeddings.
    Papers: Sohn 2016, "Improved Deep Metric Learning with Multi-class N-pair Loss Objective",
    https://papers.nips.cc/paper/2016/hash/6b180037abbebea991d8b1232f8a8ca9-Abstract.html; Fehervari et al. 2019,
    arXiv:1911.12528 (Eq 3).

    Not for `torch.compile(fullgraph=True)`: the number of classes in the batch sets the shapes.
    """

    # Without a temperature (1), unit vectors hardly train.
    search_space = {"temperature": {"start": 0.1, "low": 0.001, "high": 10.0, "scale": "log"}}

    def __init__(
        self, l2_reg: float = 0.0, symmetric: bool = False, normalize: bool = True, temperature: float = 1.0
    ) -> None:
        super().__init__(normalize)
        check_above_0(temperature=temperature)
        self.l2_reg = l2_reg
        self.symmetric = symmetric
        self.temperature = temperature

    def compute(
        self, embeddings: Points, labels: Labels, indices_tuple: Choice, ref_emb: RefPoints, ref_labels: RefLabels
    ) -> Scalar:
        if indices_tuple is None:
            a, p = pair_weights(labels, None, ref_labels, dtype=embeddings.dtype)[0].nonzero(as_tuple=True)
        else:
            a, p, _, _ = as_pairs(indices_tuple)
        if len(a) == 0:
            return embeddings.new_zeros(())
        first = _first_of_each(labels[a])
        a, p = a[first], p[first]
        anchors, others = self.points(embeddings, ref_emb)
        logits_KK = inner_products(anchors[a], others[p]) / self.temperature
        targets = torch.arange(len(a), device=labels.device)
        loss = cross_entropy(logits_KK, targets)
        if self.symmetric:
            loss = (loss + cross_entropy(logits_KK.T, targets)) / 2
        if self.l2_reg:
            raw_others = embeddings if ref_emb is None else ref_emb
            norms = embeddings[a].square().sum(1).mean() + raw_others[p].square().sum(1).mean()
            loss = loss + self.l2_reg * norms
        return loss


def _first_of_each(classes: Int[Tensor, " K"]) -> Int[Tensor, " C"]:
    """The position of the first entry of each class, classes ascending."""
    present, which = classes.unique(return_inverse=True)
    positions = torch.arange(len(classes), device=classes.device)
    return torch.full_like(present, len(classes), dtype=torch.long).scatter_reduce(0, which, positions, "amin")
