"""A loss in ten lines."""

from levelfield.losses import PairLoss


class MyLoss(PairLoss):
    """Pulls positives together and pushes negatives below a margin: mean of 1 - s, and mean of [s - margin]+."""

    search_space = {"margin": {"start": 0.5, "low": 0.05, "high": 1.0}}

    def __init__(self, margin: float = 0.5) -> None:
        super().__init__()
        self.margin = margin

    def pair_loss(self, matrix, positives, negatives):
        pull = ((1 - matrix) * positives).sum() / positives.sum().clamp(min=1)
        push = ((matrix - self.margin).clamp(min=0) * negatives).sum() / negatives.sum().clamp(min=1)
        return pull + push
