"""Miners: `miner(embeddings, labels, ref_emb=None, ref_labels=None)` gives (a, p, n) or (a1, p, a2, n)."""

from levelfield.miners.base import Miner
from levelfield.miners.multi_similarity import MultiSimilarityMiner

__all__ = ["Miner", "MultiSimilarityMiner"]
