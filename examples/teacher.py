"""A teacher: embeddings stay near those of a moving average of the learner's own weights.

cd examples
levelfield fit --config data/glyphs.yaml --model teacher.Teacher --model.weight 0.1 --model.loss MultiSimilarityLoss

You need no code to keep the average itself: `--trainer.callbacks+ EMAWeightAveraging`.
"""

import copy

import torch
from torch import nn
from torch.nn.functional import normalize

from levelfield import MetricLearner
from levelfield.training.batches import Batch


class Teacher(MetricLearner):
    """Mean teacher (Tarvainen and Valpola 2017, arXiv:1703.01780) of embeddings instead of predictions."""

    def __init__(self, *, momentum: float = 0.9, weight: float = 0.1, **kwargs):
        super().__init__(**kwargs)
        self.momentum, self.weight = momentum, weight
        self.teacher = copy.deepcopy(nn.Sequential(self.trunk, self.embedder)).requires_grad_(False).eval()

    def training_step(self, batch, batch_idx):
        read = Batch.read(batch)
        embeddings = self.embed_batch(read)
        away = (embeddings - normalize(self.teacher(read.samples))).square().sum(dim=1).mean()
        found = self.objective(embeddings, read.labels)
        return {**found, "loss": found["loss"] + self.weight * away, "away": away.detach()}

    @torch.no_grad()
    def on_train_batch_end(self, outputs, batch, batch_idx):
        mine = nn.Sequential(self.trunk, self.embedder).state_dict()
        for name, average in self.teacher.state_dict().items():
            average.copy_(average.lerp(mine[name], 1 - self.momentum) if average.is_floating_point() else mine[name])
