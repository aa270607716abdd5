"""DREML's ensemble of trunks, each of which classifies its own groups of classes.

Xuan et al. 2018, "Deep Randomized Ensembles for Metric Learning", arXiv:1808.04469.
"""

import copy
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from levelfield.core.errors import UserError, refuse_below
from levelfield.models import LinearEmbedder
from levelfield.models.embedders import Embedder
from levelfield.models.trunks import Trunk
from levelfield.training.import_paths import plain_value


class EnsembleTrunk(Trunk):
    """L copies of a trunk that start with the same weights and train separately: L x F features, member after member.

    Args:
        trunk: the first member, with F features.
        members: L.

    Raises:
        UserError: `members` below 1.
    """

    def __init__(self, trunk: Trunk, members: int = 12) -> None:
        super().__init__()
        refuse_below(1, "model.trunk", members=members)
        self.members = nn.ModuleList([trunk, *(copy.deepcopy(trunk) for _ in range(members - 1))])
        self.num_features = members * trunk.num_features
        self.init_args = {"trunk": plain_value(trunk), "members": members}
        self.licence, self.weights_origin, self.modality = trunk.licence, trunk.weights_origin, trunk.modality

    def forward(self, samples: Any) -> Float[Tensor, "batch features"]:
        return torch.cat([member(samples) for member in self.members], dim=1)


class EnsembleEmbedder(Embedder):
    """A linear layer for each member's features; returns the members' unit vectors, one after another.

    Args:
        num_features: L x F (the learner supplies it).
        embedding_size: D of the whole embedding, D / L for each member (the learner supplies it).
        members: L.

    Raises:
        UserError: L does not divide `embedding_size` or `num_features`.
    """

    def __init__(self, num_features: int, embedding_size: int, members: int = 12) -> None:
        super().__init__()
        for option, size in (("model.embedding_size", embedding_size), ("model.num_features", num_features)):
            if size % members:
                raise UserError(f"--{option} {size} must be a multiple of --model.embedder.members {members}")
        self.members = nn.ModuleList(
            LinearEmbedder(num_features // members, embedding_size // members) for _ in range(members)
        )

    def forward(self, features: Float[Tensor, "batch features"]) -> Float[Tensor, "batch embedding"]:
        shares = features.chunk(len(self.members), dim=1)
        parts = [member(share) for member, share in zip(self.members, shares, strict=True)]
        parts = [part.to(torch.promote_types(part.dtype, torch.float32)) for part in parts]
        return torch.cat([normalize(part) for part in parts], dim=1)


class MetaClassLoss(nn.Module):
    """Each member classifies meta-classes: its own random groups of the classes.

        L = sum_l mean_i CE( -k norm(u_il - e_c)^2, m_l(y_i) ),   c = 1..D

    u_il is the unit vector of member l's D numbers in embedding i; e_c, the c-th unit vector, is the fixed proxy of
    meta-class c; m_l is a random map of the classes onto D meta-classes, whose sizes differ by at most one.

    Args:
        num_classes: C (the learner supplies it).
        embedding_size: L x D (the learner supplies it).
        members: L.
        softmax_scale: k, above 0. The authors' code does not normalise, so the length of a member's output replaces k.
            With unit vectors each member has the same weight in the distance.

    The maps are drawn from torch's global generator when the loss is created, and are part of its state.

    Raises:
        ValueError: L does not divide `embedding_size`, or `softmax_scale` is not above 0.
    """

    meta_classes: Tensor

    def __init__(self, num_classes: int, embedding_size: int, members: int = 12, softmax_scale: float = 10.0) -> None:
        super().__init__()
        if embedding_size % members:
            raise ValueError(f"embedding_size={embedding_size} must be a multiple of members={members}")
        if softmax_scale <= 0:
            raise ValueError(f"softmax_scale={softmax_scale} must be above 0")
        self.members = members
        self.softmax_scale = softmax_scale
        in_turn = torch.arange(num_classes) % (embedding_size // members)
        maps_LC = torch.stack([in_turn[torch.randperm(num_classes)] for _ in range(members)])
        self.register_buffer("meta_classes", maps_LC)

    def forward(self, embeddings: Float[Tensor, "N LD"], labels: Int[Tensor, " N"]) -> Float[Tensor, ""]:
        cosines_NLD = normalize(embeddings.unflatten(1, (self.members, -1)), dim=2)
        logits_NLD = -self.softmax_scale * (2 - 2 * cosines_NLD)
        losses_NL = cross_entropy(logits_NLD.transpose(1, 2), self.meta_classes[:, labels].T, reduction="none")
        return losses_NL.sum(dim=1).mean()
