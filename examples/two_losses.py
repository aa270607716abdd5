"""Two losses: the second compares a projection of the embeddings. The projection is a module that also trains.

cd examples
levelfield fit --config data/glyphs.yaml --model two_losses.TwoLosses --model.share 0.5 --model.loss ContrastiveLoss

You need no code for two losses of the same embeddings: `levelfield.losses.WeightedSum`.
"""

from torch import nn

from levelfield import MetricLearner
from levelfield.losses import SupConLoss


class TwoLosses(MetricLearner):
    """Adds `share` times a SupCon loss of projected embeddings, as in SimCLR's head (Chen et al. 2020)."""

    def __init__(self, *, share: float = 0.5, projection_size: int = 64, **kwargs):
        super().__init__(**kwargs)
        self.share = share
        self.second = SupConLoss()
        self.projection = nn.Sequential(nn.Linear(self.embedding_size, projection_size), nn.ReLU())

    def objective(self, embeddings, labels):
        found = super().objective(embeddings, labels)
        second = self.second(self.projection(embeddings), labels)
        return {**found, "loss": found["loss"] + self.share * second, "second": second.detach()}
