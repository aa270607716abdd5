"""Trunks and embedders."""

from levelfield.models.adapters import LoRA
from levelfield.models.bn_inception import BNInceptionTrunk
from levelfield.models.embedders import (
    Embedder,
    IdentityEmbedder,
    LayerNormEmbedder,
    LayerNormLinearEmbedder,
    LinearEmbedder,
    MLPEmbedder,
)
from levelfield.models.text import TransformersTrunk
from levelfield.models.trunks import ModuleTrunk, TimmTrunk, Trunk

__all__ = [name for name in dir() if name[0].isupper()]
