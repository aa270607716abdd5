"""Overridden methods of Lightning, for a plain module and for a learner, and somebody's data set and callback."""

import numpy as np
import torch
from pytorch_metric_learning.samplers import MPerClassSampler
from torch.utils.data import DataLoader

from levelfield import MetricLearner
from levelfield.data import MPerClassBatchSampler
from levelfield.data.transforms import as_floats, stacked


class Tensored:
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx)["loss"]


class Warmed:
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9)
        warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=5)
        both = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cosine], milestones=[3])
        return [optimizer], [{"scheduler": both, "interval": "step"}]


class ByHand:
    automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx)["loss"])
        self.clip_gradients(optimizer, gradient_clip_val=0.05)
        optimizer.step()


class TensoredLearner(Tensored, MetricLearner): ...


class WarmedLearner(Warmed, MetricLearner): ...


class ByHandLearner(ByHand, MetricLearner): ...


class Plainly(torch.utils.data.Dataset):
    """(image, label) of a subset, as somebody's data set gives them."""

    def __init__(self, subset):
        self.subset = subset

    def __len__(self):
        return len(self.subset)

    def __getitem__(self, position):
        image, label, _ = self.subset[position]
        return as_floats(stacked([image]))[0], int(label)


def own_loaders(data):
    """As docs/own_parts.md has them, with the sampler of pytorch-metric-learning."""
    np.random.seed(0)  # of the sampler
    data.setup("fit")
    labels = data.train_subset.labels
    sampler = MPerClassSampler(labels, 2, batch_size=8, length_before_new_iter=40)
    return {
        "train_dataloaders": DataLoader(Plainly(data.train_subset), batch_size=8, sampler=sampler),
        "val_dataloaders": DataLoader(Plainly(data.val_subset), batch_size=20),
    }


def our_sampler(data):
    """Batches of levelfield's sampler, which a loader process opens."""
    data.setup("fit")
    batches = MPerClassBatchSampler(data.train_subset.labels, batch_size=8, samples_per_class=2, num_batches=4)
    return {
        "train_dataloaders": DataLoader(Plainly(data.train_subset), batch_sampler=batches, num_workers=1),
        "val_dataloaders": DataLoader(Plainly(data.val_subset), batch_size=20),
    }
