"""Embedders: small heads that turn a trunk's features into embeddings."""

from collections.abc import Sequence
from itertools import chain, pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn

from levelfield.core.errors import UserError


class Embedder(nn.Module):
    """From F = `num_features` to D = `embedding_size` numbers a sample; levelfield supplies both.

    Any module built as `Embedder(num_features, embedding_size, ...)` works too.
    """


class LinearEmbedder(nn.Sequential, Embedder):
    """One linear layer, as in the Reality Check.

    Args:
        bias: whether the layer has a bias.
        dropout: share of the features that a training step sets to 0 (Fehervari et al.'s proxy softmax: 0.5).
        orthogonal: whether the layer starts at an orthogonal matrix and a bias of 0 (Ermolov et al.'s hyperbolic loss).
        layer_norm: whether layer norm without learnt scale and shift follows. Embeddings then have mean 0 and norm
            sqrt(D) (Lim et al.'s HIST).
    """

    def __init__(
        self,
        num_features: int,
        embedding_size: int,
        bias: bool = True,
        dropout: float = 0.0,
        orthogonal: bool = False,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        self.dropout = nn.Dropout(_checked(dropout))
        self.linear = nn.Linear(num_features, embedding_size, bias=bias)
        if orthogonal:
            nn.init.orthogonal_(self.linear.weight)
            if bias:
                nn.init.zeros_(self.linear.bias)
        self.norm = nn.LayerNorm(embedding_size, elementwise_affine=False) if layer_norm else nn.Identity()


class LayerNormLinearEmbedder(Embedder):
    """Layer norm without learnt scale and shift, then a linear layer (Zhai & Wu 2019, section 3.2).

    Fehervari et al.'s proxy softmax adds weight norm and dropout (section 2.9).

    Args:
        bias: whether the linear layer has a bias (the papers' has none).
        dropout: share of the normalised features that a training step sets to 0.
        weight_norm: learn length and direction of each row of the linear layer separately (Salimans & Kingma 2016,
            arXiv:1602.07868).
    """

    def __init__(
        self, num_features: int, embedding_size: int, bias: bool = True, dropout: float = 0.0, weight_norm: bool = False
    ) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(num_features, elementwise_affine=False)
        self.dropout = nn.Dropout(_checked(dropout))
        linear = nn.Linear(num_features, embedding_size, bias=bias)
        self.linear = nn.utils.parametrizations.weight_norm(linear) if weight_norm else linear

    def forward(self, features: Float[Tensor, "batch features"]) -> Float[Tensor, "batch embedding"]:
        return self.linear(self.dropout(self.norm(features)))


class _SameSize(Embedder):
    """Raises UserError for an `embedding_size` other than the number of features."""

    def __init__(self, num_features: int, embedding_size: int) -> None:
        super().__init__()
        if embedding_size != num_features:
            raise UserError(
                f"{type(self).__name__} keeps the trunk's {num_features} features: give --model.embedding_size "
                f"{num_features}, not {embedding_size}, or another --model.embedder"
            )
        self.norm: nn.Module = nn.Identity()

    def forward(self, features: Float[Tensor, "batch features"]) -> Float[Tensor, "batch features"]:
        return self.norm(features)


class IdentityEmbedder(_SameSize):
    """The trunk's features without a layer on top."""


class LayerNormEmbedder(_SameSize):
    """Only layer norm, without learnt scale and shift (Zhai & Wu's ResNet50 at 2,048)."""

    def __init__(self, num_features: int, embedding_size: int) -> None:
        super().__init__(num_features, embedding_size)
        self.norm = nn.LayerNorm(num_features, elementwise_affine=False)


class MLPEmbedder(Embedder):
    """Hidden layers, each linear, GELU and dropout, then a linear layer.

    Vasilev & D'yakonov's text head, 768-768-256, has one hidden layer of 768 and dropout 0.2.

    Args:
        hidden_sizes: length of each hidden layer.
        dropout: share of a hidden layer that a training step sets to 0.
    """

    def __init__(
        self, num_features: int, embedding_size: int, hidden_sizes: Sequence[int] = (768,), dropout: float = 0.0
    ) -> None:
        super().__init__()
        sizes = (num_features, *hidden_sizes)
        hidden = ((nn.Linear(*pair), nn.GELU(), nn.Dropout(_checked(dropout))) for pair in pairwise(sizes))
        self.layers = nn.Sequential(*chain.from_iterable(hidden), nn.Linear(sizes[-1], embedding_size))

    def forward(self, features: Float[Tensor, "batch features"]) -> Float[Tensor, "batch embedding"]:
        return self.layers(features)


@torch.no_grad()
def check_embedder(embedder: nn.Module, num_features: int, embedding_size: int) -> None:
    """Raise UserError unless an embedder makes embeddings of length D from features of length F: two vectors of 0."""
    sizes = f"(num_features, embedding_size) = ({num_features}, {embedding_size})"
    built = f"--model.embedder {type(embedder).__name__}, made by {sizes}"
    like = next(embedder.parameters(), torch.zeros(()))
    modes = {module: module.training for module in embedder.modules()}
    try:
        shape = tuple(embedder.eval()(like.new_zeros(2, num_features)).shape)
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        line = " ".join(str(error).split())[:200]
        raise UserError(f"{built}, cannot take features of shape (2, {num_features}): {line}") from error
    finally:
        for module, training in modes.items():
            module.training = training
    if shape != (2, embedding_size):
        raise UserError(f"{built}, gives shape {shape} for 2 samples: it must be (2, {embedding_size})")


def _checked(dropout: float) -> float:
    if not 0 <= dropout < 1:
        raise UserError(f"--model.embedder.dropout {dropout} must be at least 0 and below 1")
    return dropout
