"""Miners: `miner(embeddings, labels, ref_emb=None, ref_labels=None)` gives (a, p, n) or (a1, p, a2, n)."""

from levelfield.miners.angular import AngularMiner
from levelfield.miners.base import Miner
from levelfield.miners.batch_easy_hard import BatchEasyHardMiner
from levelfield.miners.batch_hard import BatchHardMiner
from levelfield.miners.distance_weighted import DistanceWeightedMiner
from levelfield.miners.hdc import HDCMiner
from levelfield.miners.multi_similarity import MultiSimilarityMiner
from levelfield.miners.triplet_margin import TripletMarginMiner
from levelfield.miners.uniform_histogram import UniformHistogramMiner

__all__ = [name for name in dir() if name[0].isupper()]
