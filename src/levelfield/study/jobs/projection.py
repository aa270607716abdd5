"""What a baseline job learns: a projection of trunk features.

The baseline's job on the first fold learns another one too, a PCA of the whole training half to folds x size: what the
Reality Check compares concatenated embeddings with.
"""

from pathlib import Path
from typing import NamedTuple

import safetensors.torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from levelfield.storage.atomic import write_atomically

ONE = "one_"  # before the names of the tensors of the projection for all folds together


class Projection(NamedTuple):
    """A centred linear map of features, in float64; without components the features stay as they are.

    Shapes: F features, C components.
    """

    mean_F: Float[Tensor, " features"] | None = None
    components_FC: Float[Tensor, "features components"] | None = None

    def __call__(self, features_NF: Float[Tensor, "samples features"]) -> Float[Tensor, "samples components"]:
        """Project and L2-normalise, in float32."""
        if self.mean_F is None or self.components_FC is None:
            return normalize(features_NF)
        return normalize(((features_NF.double() - self.mean_F) @ self.components_FC).float())

    def save(self, path: Path, one: "Projection | None" = None) -> None:
        """Write it, with that for all folds together if there is one."""
        tensors = {"mean": self.mean_F, "components": self.components_FC}
        if one is not None:
            tensors |= {f"{ONE}mean": one.mean_F, f"{ONE}components": one.components_FC}
        whole = {name: tensor.contiguous() for name, tensor in tensors.items() if tensor is not None}
        write_atomically(path, safetensors.torch.save(whole))

    @classmethod
    def load(cls, path: Path) -> "Projection":
        """The projection of a finished baseline job."""
        tensors = safetensors.torch.load(path.read_bytes())
        return cls(tensors.get("mean"), tensors.get("components"))

    @classmethod
    def load_one(cls, path: Path) -> "Projection | None":
        """That for all folds together, if the job kept one."""
        tensors = safetensors.torch.load(path.read_bytes())
        return cls(tensors[f"{ONE}mean"], tensors[f"{ONE}components"]) if f"{ONE}mean" in tensors else None
