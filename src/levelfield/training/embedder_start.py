"""A linear embedder that starts as a projection: the PCA of features, or of features whitened within classes."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from levelfield.core.errors import UserError
from levelfield.metrics.pca import PCA
from levelfield.metrics.whitening import whitened_components
from levelfield.models.embedders import LinearEmbedder

EmbedderInit = Literal["random", "pca", "whitening"]
OPTION = "--model.embedder_init"


def check_can_start(embedder: nn.Module, kind: EmbedderInit) -> None:
    """Raises UserError unless `embedder` is a linear layer with a bias."""
    if kind == "random":
        return
    if not isinstance(embedder, LinearEmbedder):
        raise UserError(f"{OPTION} {kind}: {type(embedder).__name__} is no single linear layer; give LinearEmbedder")
    if embedder.linear.bias is None:
        raise UserError(f"{OPTION} {kind} centres the features by the bias: leave out --model.embedder.bias false")


@torch.no_grad()
def start_embedder(
    embedder: LinearEmbedder,
    kind: EmbedderInit,
    features_NF: Float[Tensor, "samples features"],
    labels_N: Int[Tensor, " samples"],
) -> None:
    """Make `embedder` the projection x -> C^T (x - mean).

    C are the principal components of `features_NF`. With `whitening`, C = W V, where V are the principal components of
    the features whitened by W = S^-1/2. Deterministic, and in float64 except the weights (`levelfield.metrics.pca`,
    `levelfield.metrics.whitening`). If samples or features are too few for all components, the other rows start at 0.

    Raises:
        UserError: features that are not finite, or none that differ within a class.
    """
    size = min(embedder.linear.out_features, *features_NF.shape)
    if not torch.isfinite(features_NF).all():
        raise UserError(f"{OPTION} {kind}: the trunk's features are not finite; look at its weights and at the samples")
    if kind == "pca":
        pca = PCA(size).fit(features_NF)
        assert pca.mean_D is not None
        assert pca.components_DC is not None
        mean_F, components_FC = pca.mean_D, pca.components_DC
    else:
        try:
            mean_F, components_FC = features_NF.double().mean(0), whitened_components(features_NF, labels_N, size)
        except ValueError as error:
            raise UserError(f"{OPTION} {kind}: {error}; give pca") from error
        # The same average length as the PCA's: cosines do not change, and equal steps turn both embedders equally far.
        components_FC *= size**0.5 / torch.linalg.matrix_norm(components_FC)
    embedder.linear.weight.zero_()[:size] = components_FC.T
    embedder.linear.bias.zero_()[:size] = -(mean_F @ components_FC)
