"""Trunks and embedders."""

from levelfield.models.bn_inception import BNInceptionTrunk
from levelfield.models.embedders import Embedder, LayerNormLinearEmbedder, LinearEmbedder
from levelfield.models.text import TransformersTrunk
from levelfield.models.trunks import TimmTrunk, Trunk

__all__ = [
    "BNInceptionTrunk",
    "Embedder",
    "LayerNormLinearEmbedder",
    "LinearEmbedder",
    "TimmTrunk",
    "TransformersTrunk",
    "Trunk",
]
