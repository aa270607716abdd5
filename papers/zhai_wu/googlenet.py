"""torchvision's GoogLeNet with batch norm, the trunk of Zhai & Wu.

At the top of the repository:
levelfield fit ... --model.trunk papers.zhai_wu.googlenet.GoogLeNetTrunk --data.transforms.crop_size 227
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from levelfield.models.trunks import Standardise, Trunk
from levelfield.models.weights import load_weights

WEIGHTS_LICENCE = "BSD-3-Clause (torchvision)"
WEIGHTS_SHA256 = "1378be20"  # torchvision publishes only its beginning, in the file name


class GoogLeNetTrunk(Trunk):
    """GoogLeNet, pooled, without its three heads: 1,024 features. Images are in [0, 1]; the trunk standardises them.

    Args:
        weights: `pretrained` (torchvision's ImageNet checkpoint, downloaded once), a file, `package:<import name>`, or
            None for random weights.

    Raises:
        UserError: weights that are not available or do not fit.

    Example:
        >>> trunk = GoogLeNetTrunk(weights=None)
        >>> trunk(torch.rand(2, 3, 64, 64)).shape
        torch.Size([2, 1024])

    Paper: Szegedy et al. 2015, "Going Deeper with Convolutions"; torchvision's has the batch norm of its successor.
    """

    def __init__(self, weights: str | None = "pretrained") -> None:
        super().__init__()
        from torchvision.models import GoogLeNet, GoogLeNet_Weights

        self.init_args = {"weights": weights}
        self.num_features = 1024
        self.mean = self.std = (0.5, 0.5, 0.5)  # what the checkpoint's `transform_input` makes of ImageNet's statistics
        model: Any = GoogLeNet(aux_logits=False, init_weights=False)  # its own initialisation takes seconds
        model.fc = model.dropout = nn.Identity()
        self.model = model
        if weights == "pretrained":
            self.licence = WEIGHTS_LICENCE
        self.weights_origin = load_weights(model, weights, GoogLeNet_Weights.IMAGENET1K_V1.url, WEIGHTS_SHA256)
        self.model.to(memory_format=torch.channels_last)
        self.standardise = Standardise(self.mean, self.std)

    def forward(self, images: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch features"]:
        return self.model(self.standardise(images).contiguous(memory_format=torch.channels_last))
