"""Trunks and embedders."""

from levelfield.models.embedders import Embedder, LayerNormLinearEmbedder, LinearEmbedder
from levelfield.models.trunks import TimmTrunk, Trunk

__all__ = ["Embedder", "LayerNormLinearEmbedder", "LinearEmbedder", "TimmTrunk", "Trunk"]
