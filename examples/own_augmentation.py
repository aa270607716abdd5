"""Your own augmentation: any class with `train` and `evaluate`, each of which returns a function of an RGB image.

cd examples
levelfield fit --config data/glyphs.yaml --data.transforms own_augmentation.Rotated --data.transforms.degrees 20 \
  --model.loss MultiSimilarityLoss
"""

import torch
from torchvision.transforms import v2


class Rotated:
    """Images of letters, rotated a little in training."""

    def __init__(self, size: int = 64, degrees: float = 10.0):
        self.size, self.degrees = size, degrees

    def train(self):
        return v2.Compose([v2.RandomRotation(self.degrees, fill=255), *self.steps()])

    def evaluate(self):
        return v2.Compose(self.steps())

    def steps(self):
        return [v2.Resize((self.size, self.size)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
