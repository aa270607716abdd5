"""BN-Inception, the Reality Check's trunk, with the tensor names of the public ImageNet checkpoint."""

from typing import NamedTuple

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


class Widths(NamedTuple):
    """Channels of an inception block; one without a 1x1 branch halves the sides and has no pool projection."""

    one: int
    three_reduce: int
    three: int
    double_reduce: int
    double: int
    pool: int


# Figure 5 of the paper, except the pool projections of 4c and 4d: 96 there, 128 in the checkpoint.
BLOCKS = {
    "3a": Widths(64, 64, 64, 64, 96, 32),
    "3b": Widths(64, 64, 96, 64, 96, 64),
    "3c": Widths(0, 128, 160, 64, 96, 0),
    "4a": Widths(224, 64, 96, 96, 128, 128),
    "4b": Widths(192, 96, 128, 96, 128, 128),
    "4c": Widths(160, 128, 160, 128, 160, 128),
    "4d": Widths(96, 128, 192, 160, 192, 128),
    "4e": Widths(0, 128, 192, 192, 256, 0),
    "5a": Widths(352, 192, 320, 160, 224, 128),
    "5b": Widths(352, 192, 320, 192, 224, 128),
}


class BNInception(nn.Module):
    """The network; all submodules are on one level, under the checkpoint's names.

    Args:
        num_classes: outputs of the classification head `last_linear`; 0 leaves the head out.

    Paper: Ioffe & Szegedy 2015, "Batch Normalization: Accelerating Deep Network Training by Reducing Internal Covariate
        Shift" (the network is its Figure 5).
    """

    num_features = 1024

    def __init__(self, num_classes: int = 0) -> None:
        super().__init__()
        self._add("conv1_7x7_s2", 3, 64, kernel=7, stride=2)
        self._add("conv2_3x3_reduce", 64, 64)
        self._add("conv2_3x3", 64, 192, kernel=3)
        channels = 192
        for block, widths in BLOCKS.items():
            name, stride = f"inception_{block}", 1 if widths.one else 2
            if widths.one:
                self._add(f"{name}_1x1", channels, widths.one)
            self._add(f"{name}_3x3_reduce", channels, widths.three_reduce)
            self._add(f"{name}_3x3", widths.three_reduce, widths.three, kernel=3, stride=stride)
            self._add(f"{name}_double_3x3_reduce", channels, widths.double_reduce)
            self._add(f"{name}_double_3x3_1", widths.double_reduce, widths.double, kernel=3)
            self._add(f"{name}_double_3x3_2", widths.double, widths.double, kernel=3, stride=stride)
            if widths.pool:
                self._add(f"{name}_pool_proj", channels, widths.pool)
            channels = widths.one + widths.three + widths.double + (widths.pool or channels)
        self.last_linear = nn.Linear(channels, num_classes) if num_classes else nn.Identity()

    def _add(self, name: str, inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> None:
        self.add_module(name, nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2))
        self.add_module(f"{name}_bn", nn.BatchNorm2d(outputs))

    def _apply_unit(self, name: str, maps: Tensor) -> Tensor:
        return functional.relu(getattr(self, f"{name}_bn")(getattr(self, name)(maps)))

    def _apply_chain(self, block: str, names: tuple[str, ...], maps: Tensor) -> Tensor:
        for name in names:
            maps = self._apply_unit(f"inception_{block}_{name}", maps)
        return maps

    def _apply_block(self, block: str, maps: Tensor) -> Tensor:
        branches = [
            self._apply_chain(block, ("3x3_reduce", "3x3"), maps),
            self._apply_chain(block, ("double_3x3_reduce", "double_3x3_1", "double_3x3_2"), maps),
        ]
        if not BLOCKS[block].one:
            return torch.cat([*branches, halve(maps)], dim=1)
        # Only 5b pools by maximum; the others average, including the zeros of the padding.
        pooled = functional.max_pool2d(maps, 3, 1, 1) if block == "5b" else functional.avg_pool2d(maps, 3, 1, 1)
        first = self._apply_chain(block, ("1x1",), maps)
        return torch.cat([first, *branches, self._apply_chain(block, ("pool_proj",), pooled)], dim=1)

    def forward(self, images: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch outputs"]:
        """Features, or logits if there is a head. Images are BGR, 0 to 255, minus the mean."""
        maps = halve(self._apply_unit("conv1_7x7_s2", images))
        maps = halve(self._apply_unit("conv2_3x3", self._apply_unit("conv2_3x3_reduce", maps)))
        for block in BLOCKS:
            maps = self._apply_block(block, maps)
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
        self.init_args = {"weights": weights}
        self.num_features = BNInception.num_features
        self.mean, self.std = tuple(value / 255 for value in reversed(MEAN_BGR)), (1 / 255,) * 3
        self.model = BNInception()
        if weights == "pretrained":
            self.licence = WEIGHTS_LICENCE
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
