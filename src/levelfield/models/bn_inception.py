"""BN-Inception, the Reality Check's trunk, with the tensor names of the public ImageNet checkpoint."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from levelfield.core.errors import UserError
from levelfield.models.trunks import Standardise, Trunk
from levelfield.models.weights import load_weights

WEIGHTS_URL = "http://data.lip6.fr/cadene/pretrainedmodels/bn_inception-52deb4733.pth"
WEIGHTS_SHA256 = "52deb473314542a5c2f87e9e6f26f4ca42fe863d15f986414dbae8c2dfdd2353"
WEIGHTS_LICENCE = "BSD-3-Clause (pretrained-models.pytorch)"

MEAN_BGR = (104.0, 117.0, 128.0)  # of values from 0 to 255


# Channels of a block: 1x1, 3x3 reduced and whole, double 3x3 reduced and whole, pool projection. A block without 1x1
# halves the sides and has no projection.
# Figure 5 of the paper, except the pool projections of 4c and 4d: 96 there, 128 in the checkpoint.
BLOCKS = {
    "3a": (64, 64, 64, 64, 96, 32),
    "3b": (64, 64, 96, 64, 96, 64),
    "3c": (0, 128, 160, 64, 96, 0),
    "4a": (224, 64, 96, 96, 128, 128),
    "4b": (192, 96, 128, 96, 128, 128),
    "4c": (160, 128, 160, 128, 160, 128),
    "4d": (96, 128, 192, 160, 192, 128),
    "4e": (0, 128, 192, 192, 256, 0),
    "5a": (352, 192, 320, 160, 224, 128),
    "5b": (352, 192, 320, 192, 224, 128),
}


class BNInception(nn.Module):
    """The network; all submodules are on one level, under the checkpoint's names. Without classes it has no head.

    Paper: Ioffe & Szegedy 2015, "Batch Normalization: Accelerating Deep Network Training" (arXiv:1502.03167), Figure 5.
    """

    num_features = 1024

    def __init__(self, num_classes: int = 0) -> None:
        super().__init__()
        self._add("conv1_7x7_s2", 3, 64, kernel=7, stride=2)
        self._add("conv2_3x3_reduce", 64, 64)
        self._add("conv2_3x3", 64, 192, kernel=3)
        channels = 192
        for block, (one, three_reduce, three, double_reduce, double, pool) in BLOCKS.items():
            name, stride = f"inception_{block}", 1 if one else 2
            if one:
                self._add(f"{name}_1x1", channels, one)
            self._add(f"{name}_3x3_reduce", channels, three_reduce)
            self._add(f"{name}_3x3", three_reduce, three, kernel=3, stride=stride)
            self._add(f"{name}_double_3x3_reduce", channels, double_reduce)
            self._add(f"{name}_double_3x3_1", double_reduce, double, kernel=3)
            self._add(f"{name}_double_3x3_2", double, double, kernel=3, stride=stride)
            if pool:
                self._add(f"{name}_pool_proj", channels, pool)
            channels = one + three + double + (pool or channels)
        self.last_linear = nn.Linear(channels, num_classes) if num_classes else nn.Identity()

    def _add(self, name: str, inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> None:
        self.add_module(name, nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2))
        self.add_module(f"{name}_bn", nn.BatchNorm2d(outputs))

    def _run(self, maps: Tensor, *names: str) -> Tensor:
        for name in names:
            maps = functional.relu(getattr(self, f"{name}_bn")(getattr(self, name)(maps)))
        return maps

    def _run_block(self, block: str, maps: Tensor) -> Tensor:
        of = f"inception_{block}"
        three = self._run(maps, f"{of}_3x3_reduce", f"{of}_3x3")
        double = self._run(maps, f"{of}_double_3x3_reduce", f"{of}_double_3x3_1", f"{of}_double_3x3_2")
        if f"{of}_1x1" not in self._modules:
            return torch.cat([three, double, halve(maps)], dim=1)
        # Only 5b pools by maximum; the others average, including the zeros of the padding.
        pooled = functional.max_pool2d(maps, 3, 1, 1) if block == "5b" else functional.avg_pool2d(maps, 3, 1, 1)
        one, projected = self._run(maps, f"{of}_1x1"), self._run(pooled, f"{of}_pool_proj")
        return torch.cat([one, three, double, projected], dim=1)

    def forward(self, images: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch outputs"]:
        """Features, or logits if there is a head. Images are BGR, 0 to 255, minus the mean."""
        maps = halve(self._run(images, "conv1_7x7_s2"))
        maps = halve(self._run(maps, "conv2_3x3_reduce", "conv2_3x3"))
        for block in BLOCKS:
            maps = self._run_block(block, maps)
        return self.last_linear(maps.mean(dim=(2, 3)))


class BNInceptionTrunk(Trunk):
    """BN-Inception, pooled, without its head: 1,024 features. Images are RGB in [0, 1]; the trunk converts them to BGR.

    Args:
        weights: `pretrained` (the public ImageNet checkpoint, downloaded once), a file, `package:<import name>`, or
            None for random weights.

    Raises:
        UserError: weights that are not available or do not fit, or images of a size that the network cannot halve.

    Example:
        >>> trunk = BNInceptionTrunk(weights=None)
        >>> trunk(torch.rand(2, 3, 64, 64)).shape
        torch.Size([2, 1024])
    """

    def __init__(self, weights: str | None = "pretrained") -> None:
        super().__init__()
        self.init_args, self.num_features = {"weights": weights}, BNInception.num_features
        self.mean, self.std = tuple(value / 255 for value in reversed(MEAN_BGR)), (1 / 255,) * 3
        self.model = BNInception()
        self.licence = WEIGHTS_LICENCE if weights == "pretrained" else None
        self.weights_origin = load_weights(self.model, weights, WEIGHTS_URL, WEIGHTS_SHA256)
        self.model.to(memory_format=torch.channels_last)
        self.standardise = Standardise(self.mean, self.std)

    def forward(self, images: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch features"]:
        for side in images.shape[2:]:
            if (side + 1) // 2 // 4 % 4 or side < 32:
                raise UserError(
                    f"BN-Inception cannot halve an image side of {side} px evenly: give a crop_size of 227, or any "
                    "multiple of 32"
                )
        bgr = self.standardise(images).flip(1)
        return self.model(bgr.contiguous(memory_format=torch.channels_last))


def halve(maps: Tensor) -> Tensor:
    """Max pooling to half the sides; an incomplete last window counts, as in Caffe."""
    return functional.max_pool2d(maps, kernel_size=3, stride=2, ceil_mode=True)
