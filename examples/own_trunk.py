"""Your own trunk: any module that turns images into feature vectors of length `num_features`.

cd examples
levelfield fit --config data/glyphs.yaml --model.trunk own_trunk.SmallTrunk --model.trunk.width 32 \
  --model.trunk_lr 1e-3 --model.loss MultiSimilarityLoss
"""

from torch import nn


class SmallTrunk(nn.Module):
    """Three convolutions. Images (N, 3, H, W) from 0 to 1 become features (N, 4 * width)."""

    def __init__(self, width: int = 32):
        super().__init__()
        self.num_features = 4 * width
        self.layers = nn.Sequential(
            *self.convolution(3, width), *self.convolution(width, 2 * width), *self.convolution(2 * width, 4 * width)
        )

    def forward(self, images):
        return self.layers(images - 0.5).mean(dim=(2, 3))

    @staticmethod
    def convolution(inputs: int, outputs: int):
        return nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.GroupNorm(8, outputs), nn.ReLU()
