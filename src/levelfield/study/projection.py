"""The projection of trunk features in an untrained row: a PCA, a discriminant analysis, a whitening, or none.

The baseline's job on the first fold also fits a PCA of the whole training half to folds x size. The Reality Check
compares concatenated embeddings with it.
"""

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import safetensors.torch
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from levelfield.core.files import write_atomically
from levelfield.metrics.pca import PCA
from levelfield.metrics.whitening import whitened_components, within_class_whitening
from levelfield.study.spec import FEATURES, LDA, TO_SIZE, WHITENING

ONE = "one_"  # prefix of the tensors of the projection for all folds together


class Projection(NamedTuple):
    """A centred linear map of features in float64; without components the features are unchanged.

    Shapes: F features, C components.
    """

    mean_F: Float[Tensor, " features"] | None = None
    components_FC: Float[Tensor, "features components"] | None = None

    def __call__(self, features_NF: Float[Tensor, "samples features"]) -> Float[Tensor, "samples components"]:
        """Project and L2-normalize, in float32."""
        if self.mean_F is None or self.components_FC is None:
            return normalize(features_NF)
        return normalize(((features_NF.double() - self.mean_F) @ self.components_FC).float())

    def save(self, path: Path, one: "Projection | None" = None) -> None:
        """Write the projection, and the one for all folds together if it is given."""
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
        """The projection for all folds together, if there is one."""
        tensors = safetensors.torch.load(path.read_bytes())
        return cls(tensors[f"{ONE}mean"], tensors[f"{ONE}components"]) if f"{ONE}mean" in tensors else None


def fit_projection(
    kind: str,
    features: Float[Tensor, "samples features"],
    labels: Int[Tensor, " samples"],
    embedding_size: int,
) -> Projection:
    """Fit a fold's projection on the features and labels of its training samples.

    Args:
        kind: `pca` (to the embedding size of the methods), `features`, `lda`, `whitening` (all dimensions) or `pca512`.
        embedding_size: D of the methods.
    """
    if kind == FEATURES:
        return Projection()
    if kind == LDA:
        return linear_discriminants(features, labels, embedding_size)
    if kind == WHITENING:
        return Projection(features.double().mean(0), within_class_whitening(features, labels))
    match = re.fullmatch(TO_SIZE, kind)
    size = min(embedding_size if match is None else int(match[2]), *features.shape)
    if match is not None and match[1] == WHITENING:
        return Projection(features.double().mean(0), whitened_components(features, labels, size))
    pca = PCA(size).fit(features)
    return Projection(pca.mean_D, pca.components_DC)


def linear_discriminants(
    features: Float[Tensor, "samples features"], labels: Int[Tensor, " samples"], most: int
) -> Projection:
    """The directions that separate the classes best, by scikit-learn: at most `most`, and fewer than classes.

    The covariance of each class is shrunk (Ledoit and Wolf 2004), because a class has fewer samples than the trunk has
    features. The result is deterministic: float64, with the largest entry of each direction positive.
    """
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis  # takes a second

    exact_NF, classes_N = features.double().numpy(), labels.numpy()
    found = LinearDiscriminantAnalysis(solver="eigen", shrinkage="auto").fit(exact_NF, classes_N)
    count = min(most, exact_NF.shape[1], len(found.classes_) - 1)
    components_FC = found.scalings_[:, :count]
    largest_C = np.abs(components_FC).argmax(axis=0)
    components_FC = components_FC * np.sign(components_FC[largest_C, np.arange(count)])
    return Projection(torch.from_numpy(exact_NF.mean(axis=0)), torch.from_numpy(components_FC))
