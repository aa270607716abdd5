"""Losses: `loss(embeddings, labels, indices_tuple=None, ref_emb=None, ref_labels=None)` gives a scalar."""

from levelfield.losses.arcface import ArcFaceLoss
from levelfield.losses.base import MetricLoss
from levelfield.losses.classification import ClassificationLoss
from levelfield.losses.contrastive import ContrastiveLoss
from levelfield.losses.multi_similarity import MultiSimilarityLoss
from levelfield.losses.normalized_softmax import NormalizedSoftmaxLoss
from levelfield.losses.pairs import PairLoss
from levelfield.losses.triplet_margin import TripletMarginLoss

__all__ = [
    "ArcFaceLoss",
    "ClassificationLoss",
    "ContrastiveLoss",
    "MetricLoss",
    "MultiSimilarityLoss",
    "NormalizedSoftmaxLoss",
    "PairLoss",
    "TripletMarginLoss",
]
