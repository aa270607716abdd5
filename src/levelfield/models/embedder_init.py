"""Initial weights of a linear embedder from the features of the training samples."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from levelfield.core.errors import UserError
from levelfield.metrics.projections import PCA, linear_discriminants, whitened_components, within_class_whitening
from levelfield.models.embedders import LinearEmbedder

EmbedderInit = Literal["random", "pca", "whitening", "lda"]
OPTION = "--model.embedder_init"


def check_can_start(embedder: nn.Module, kind: EmbedderInit) -> None:
    """Raises UserError unless `embedder` is a linear layer with a bias."""
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

    C are the principal components of `features_NF`, or its discriminants. With `whitening`, C = W V, where V are the
    principal components of the features whitened by W = S^-1/2; an embedding as long as the features is not rotated,
    C = W. Deterministic, and in float64 except the weights (`levelfield.metrics`). If samples, classes or features are
    too few for all components, the other rows start at 0.

    Raises:
        UserError: features that are not finite, none that differ within a class, or one class for `lda`.
    """
    most, length = embedder.linear.out_features, features_NF.shape[1]
    if not torch.isfinite(features_NF).all():
        raise UserError(f"{OPTION} {kind}: the trunk's features are not finite; look at its weights and at the samples")
    mean_F, size = features_NF.double().mean(0), min(most, *features_NF.shape)
    try:
        if kind == "pca":
            components_FC = PCA(size).fit(features_NF).components_DC
        elif kind == "lda":
            components_FC = linear_discriminants(features_NF, labels_N, most)
        elif most < length:
            components_FC = whitened_components(features_NF, labels_N, size)
        else:
            components_FC = within_class_whitening(features_NF, labels_N)
    except ValueError as error:
        raise UserError(f"{OPTION} {kind}: {error}; give pca") from error
    assert components_FC is not None
    size = components_FC.shape[1]
    if kind != "pca":
        # The same average length as the PCA's: cosines do not change, and equal steps turn all embedders equally far.
        components_FC = components_FC * (size**0.5 / torch.linalg.matrix_norm(components_FC))
    embedder.linear.weight.zero_()[:size] = components_FC.T
    embedder.linear.bias.zero_()[:size] = -(mean_F @ components_FC)
