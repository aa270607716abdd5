"""Trunks and embedders."""

from levelfield.models.embedders import LayerNormLinearEmbedder, LinearEmbedder
from levelfield.models.trunks import TimmTrunk, Trunk

__all__ = ["LayerNormLinearEmbedder", "LinearEmbedder", "TimmTrunk", "Trunk"]
