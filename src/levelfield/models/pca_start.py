"""A linear embedder that starts as the PCA of features."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from levelfield.errors import UserError
from levelfield.metrics.pca import PCA
from levelfield.models.embedders import LinearEmbedder

OPTION = "--model.embedder_init pca"


def check_can_be_pca(embedder: nn.Module, num_features: int) -> None:
    """Raises UserError unless `embedder` is a linear layer with a bias that makes features no longer."""
    if not isinstance(embedder, LinearEmbedder):
        raise UserError(f"{OPTION}: {type(embedder).__name__} is no single linear layer; give LinearEmbedder")
    if embedder.linear.bias is None:
        raise UserError(f"{OPTION} centres the features by the layer's bias: leave out --model.embedder.bias false")
    if embedder.linear.out_features > num_features:
        raise UserError(
            f"{OPTION}: {num_features} features have no {embedder.linear.out_features} principal components; give "
            f"--model.embedding_size {num_features} or less"
        )


@torch.no_grad()
def start_at_pca(embedder: LinearEmbedder, features_NF: Float[Tensor, "samples features"]) -> None:
    """Make `embedder` the projection on the principal components of `features_NF`: x -> C^T (x - mean).

    Deterministic, in float64 up to the weights: see `levelfield.metrics.pca.PCA`.

    Raises:
        UserError: fewer samples than components, or features that are not finite.
    """
    size = embedder.linear.out_features
    if len(features_NF) < size:
        raise UserError(
            f"{OPTION}: {len(features_NF)} training samples have no {size} principal components; give "
            f"--model.embedding_size {len(features_NF)} or less"
        )
    if not torch.isfinite(features_NF).all():
        raise UserError(f"{OPTION}: the trunk's features are not finite; look at its weights and at the samples")
    pca = PCA(size).fit(features_NF)
    assert pca.components_DC is not None
    assert pca.mean_D is not None
    embedder.linear.weight.copy_(pca.components_DC.T)
    embedder.linear.bias.copy_(-(pca.mean_D @ pca.components_DC))
