"""Contrastive loss."""

from torch.nn.functional import relu

from levelfield.losses.base import Scalar
from levelfield.losses.pairs import PairLoss, Pairs, nonzero_mean, pull_and_push, unit_distances


class ContrastiveLoss(PairLoss):
    """Positive pairs must be nearer than one margin, negative pairs farther than another.

        L = NZ_{(i,p)} [d_ip - m_pos]+^h  +  NZ_{(i,n)} [m_neg - d_in]+^h

    d is the distance of unit vectors, in [0, 2]. NZ is the mean over the terms above 0. Takes label sets.

    Args:
        pos_margin: m_pos; at or below 0 positives are always pulled.
        neg_margin: m_neg.
        hinge_power: h, 1 as in the Reality Check or 2 as in Hadsell et al. and Vasilev & D'yakonov (Eq 1).

    Cost: B^2. When: the baseline; hard to beat once tuned.
    Papers: Hadsell, Chopra & LeCun 2006, https://doi.org/10.1109/CVPR.2006.100; this form Musgrave et al. 2020,
    arXiv:2003.08505 (Eq 1).

    Example:
        >>> import torch
        >>> loss = ContrastiveLoss(neg_margin=0.5)
        >>> bool(loss(torch.eye(3), torch.tensor([0, 0, 1])) == 2**0.5)  # the positive pair is sqrt(2) apart
        True
    """

    matrix = staticmethod(unit_distances)
    takes_label_sets = True
    search_space = {
        "pos_margin": {"start": 0.2, "low": -0.2, "high": 2.0, "scale": "linear"},  # stops positives before collapse
        "neg_margin": {"start": 0.8, "low": -0.2, "high": 2.0, "scale": "linear"},  # near the Reality Check's optima
    }

    def __init__(self, pos_margin: float = 0.0, neg_margin: float = 1.0, hinge_power: int = 1) -> None:
        super().__init__()
        if hinge_power not in (1, 2):
            raise ValueError(f"hinge_power={hinge_power} must be 1 or 2")
        self.pos_margin = pos_margin
        self.neg_margin = neg_margin
        self.hinge_power = hinge_power

    def pair_loss(self, matrix: Pairs, positives: Pairs, negatives: Pairs) -> Scalar:
        if self.hinge_power == 1:
            return pull_and_push(matrix, positives, negatives, self.pos_margin, self.neg_margin)
        pull = relu(matrix - self.pos_margin).square()
        push = relu(self.neg_margin - matrix).square()
        return nonzero_mean(pull, positives) + nonzero_mean(push, negatives)
