"""What a baseline job learns: the projection of trunk features to the embedding size."""

from pathlib import Path

import safetensors.torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from levelfield.metrics.pca import PCA
from levelfield.storage.atomic import write_atomically


def save_pca(pca: PCA, path: Path) -> None:
    """Write a fitted projection."""
    assert pca.mean_D is not None
    assert pca.components_DC is not None
    tensors = {"mean": pca.mean_D, "components": pca.components_DC.contiguous()}
    write_atomically(path, safetensors.torch.save(tensors))


def load_pca(path: Path) -> PCA:
    """The projection of a finished baseline job."""
    tensors = safetensors.torch.load(path.read_bytes())
    pca = PCA(tensors["components"].shape[1])
    pca.mean_D, pca.components_DC = tensors["mean"], tensors["components"]
    return pca


def reduce(pca: PCA, features_NF: Float[Tensor, "samples features"]) -> Float[Tensor, "samples components"]:
    """Project and L2-normalise."""
    return normalize(pca.transform(features_NF))
