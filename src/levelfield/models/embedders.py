"""Embedders: small heads that turn a trunk's features into embeddings."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn


class Embedder(nn.Module):
    """A module built as `Embedder(num_features, embedding_size, ...)`; any module built so works too."""


class LinearEmbedder(Embedder):
    """One linear layer, the Reality Check's embedder.

    Args:
        num_features: length F of the trunk's features (the learner supplies it).
        embedding_size: length D of an embedding (the learner supplies it).
        bias: whether the layer has a bias.
    """

    def __init__(self, num_features: int, embedding_size: int, bias: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(num_features, embedding_size, bias=bias)

    def forward(self, features: Float[Tensor, "batch features"]) -> Float[Tensor, "batch embedding"]:
        return self.linear(features)


class LayerNormLinearEmbedder(Embedder):
    """Layer norm without learnt scale and shift, then a linear layer (Zhai & Wu 2019, section 3.2).

    Args:
        num_features: length F of the trunk's features (the learner supplies it).
        embedding_size: length D of an embedding (the learner supplies it).
        bias: whether the linear layer has a bias (the paper's has none).
    """

    def __init__(self, num_features: int, embedding_size: int, bias: bool = True) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(num_features, elementwise_affine=False)
        self.linear = nn.Linear(num_features, embedding_size, bias=bias)

    def forward(self, features: Float[Tensor, "batch features"]) -> Float[Tensor, "batch embedding"]:
        return self.linear(self.norm(features))
