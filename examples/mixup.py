"""Mixup: embeds mixtures of two images and weights their losses by the shares (Zhang et al. 2018, arXiv:1710.09412).

cd examples
levelfield fit --config data/glyphs.yaml --model mixup.Mixup --model.alpha 0.4 --model.loss MultiSimilarityLoss
"""

import torch
from torch.distributions import Beta

from levelfield import MetricLearner


class Mixup(MetricLearner):
    """For one device only: each process would mix only its own images.

    Args:
        alpha: both parameters of the Beta distribution that a batch's share is drawn from.
    """

    def __init__(self, *, alpha: float = 0.4, **kwargs):
        super().__init__(**kwargs)
        self.alpha = alpha

    def training_step(self, batch, batch_idx):
        images, labels, _ = batch
        share = Beta(self.alpha, self.alpha).sample()
        other = torch.randperm(len(images), device=images.device)
        embeddings = self(share * images + (1 - share) * images[other])
        first, second = self.compute_loss(embeddings, labels), self.compute_loss(embeddings, labels[other])
        return {"loss": share * first + (1 - share) * second, "share": share}
