"""A LightningModule that does not use levelfield. Its `validation_step` returns embeddings; nothing else is needed.

cd examples
levelfield fit --config data/glyphs.yaml --model plain_module.Plain --model.width 32
"""

import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.nn.functional import cross_entropy, normalize


class Plain(LightningModule):
    def __init__(self, width: int = 32, lr: float = 3e-3):
        super().__init__()
        self.lr = lr
        self.network = nn.Sequential(
            *(nn.Conv2d(3, width, 5, stride=2), nn.ReLU(), nn.Conv2d(width, width, 5, stride=2), nn.ReLU()),
            *(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * width, 64)),
        )

    def training_step(self, batch, batch_idx):
        images, labels, _ = batch
        embeddings = normalize(self.network(images - 0.5))
        same = (labels[:, None] == labels).float().fill_diagonal_(0)
        logits = (10 * embeddings @ embeddings.T).fill_diagonal_(-1e4)
        return cross_entropy(logits, same / same.sum(dim=1, keepdim=True))

    def validation_step(self, batch, batch_idx):
        images = batch[0]
        return normalize(self.network(images - 0.5))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)
