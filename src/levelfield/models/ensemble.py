"""An ensemble in one network: copies of a trunk side by side, an embedder each."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from levelfield.errors import UserError
from levelfield.models.embedders import Embedder, LinearEmbedder
from levelfield.models.trunks import Trunk


class EnsembleTrunk(Trunk):
    """L copies of a trunk, which begin alike and share nothing: L x F features, member after member.

    Args:
        trunk: the first member.
        members: L.

    Raises:
        UserError: `members` below 1.
    """

    def __init__(self, trunk: Trunk, members: int) -> None:
        super().__init__()
        if members < 1:
            raise UserError(f"--model.members {members} must be at least 1")
        self.members = nn.ModuleList([trunk, *(copy.deepcopy(trunk) for _ in range(members - 1))])
        self.num_features = members * trunk.num_features
        self.init_args, self.checkpoint_args = trunk.init_args, trunk.checkpoint_args
        self.mean, self.std = trunk.mean, trunk.std
        self.licence, self.weights_origin, self.modality = trunk.licence, trunk.weights_origin, trunk.modality

    def forward(self, samples: Any) -> Float[Tensor, "batch features"]:
        return torch.cat([member(samples) for member in self.members], dim=1)


class EnsembleEmbedder(Embedder):
    """An embedder for each member's features; the unit vectors of all members, one after another.

    Args:
        num_features: length F of one member's features (the learner supplies it); a batch has L x F, or F that all
            members share.
        embedding_size: length D of the whole embedding, D / L for each member.
        embedder: class, built with F and D / L.
        members: L.

    Raises:
        UserError: D is no multiple of L.
    """

    def __init__(
        self,
        num_features: int,
        embedding_size: int,
        embedder: Callable[[int, int], nn.Module] = LinearEmbedder,
        members: int = 12,
    ) -> None:
        super().__init__()
        if embedding_size % members:
            raise UserError(f"--model.embedding_size {embedding_size} must be a multiple of --model.members {members}")
        self.num_features = num_features
        self.members = nn.ModuleList(embedder(num_features, embedding_size // members) for _ in range(members))

    def forward(self, features: Float[Tensor, "batch features"]) -> Float[Tensor, "batch embedding"]:
        shared = features.shape[1] == self.num_features
        shares = [features] * len(self.members) if shared else features.chunk(len(self.members), dim=1)
        chunks = [member(share) for member, share in zip(self.members, shares, strict=True)]
        chunks = [chunk.to(torch.promote_types(chunk.dtype, torch.float32)) for chunk in chunks]
        return torch.cat([nn.functional.normalize(chunk) for chunk in chunks], dim=1)
