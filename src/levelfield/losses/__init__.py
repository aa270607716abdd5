"""Losses: `loss(embeddings, labels, indices_tuple=None, ref_emb=None, ref_labels=None)` gives a scalar."""

from levelfield.losses.adaface import AdaFaceLoss
from levelfield.losses.angular import AngularLoss
from levelfield.losses.arcface import ArcFaceLoss
from levelfield.losses.base import MetricLoss
from levelfield.losses.centroid_triplet import CentroidTripletLoss
from levelfield.losses.circle import CircleLoss
from levelfield.losses.classification import ClassificationLoss
from levelfield.losses.contextual import ContextualLoss
from levelfield.losses.contrastive import ContrastiveLoss
from levelfield.losses.cosface import CosFaceLoss
from levelfield.losses.cross_batch_memory import CrossBatchMemory
from levelfield.losses.decoupled_contrastive import DecoupledContrastiveLoss
from levelfield.losses.fast_ap import FastAPLoss
from levelfield.losses.hist import HISTLoss
from levelfield.losses.hyperbolic_cross_entropy import HyperbolicCrossEntropyLoss
from levelfield.losses.lifted_structure import LiftedStructureLoss
from levelfield.losses.magface import MagFaceLoss
from levelfield.losses.margin import MarginLoss
from levelfield.losses.multi_similarity import MultiSimilarityLoss
from levelfield.losses.n_pairs import NPairsLoss
from levelfield.losses.normalized_softmax import NormalizedSoftmaxLoss
from levelfield.losses.ntxent import NTXentLoss
from levelfield.losses.pairs import PairLoss
from levelfield.losses.pnp import PNPLoss
from levelfield.losses.potential_field import PotentialFieldLoss
from levelfield.losses.prototypical import PrototypicalLoss
from levelfield.losses.proxy_anchor import ProxyAnchorLoss
from levelfield.losses.proxy_nca import ProxyNCALoss
from levelfield.losses.proxy_triplet import ProxyTripletLoss
from levelfield.losses.ranked_list import RankedListLoss
from levelfield.losses.recall_at_k import RecallAtKLoss
from levelfield.losses.roadmap import ROADMAPLoss
from levelfield.losses.sigmoid_pair import SigmoidPairLoss
from levelfield.losses.signal_to_noise_ratio import SignalToNoiseRatioContrastiveLoss
from levelfield.losses.smooth_ap import SmoothAPLoss
from levelfield.losses.soft_nearest_neighbor import SoftNearestNeighborLoss
from levelfield.losses.soft_triple import SoftTripleLoss
from levelfield.losses.sphereface import SphereFaceLoss
from levelfield.losses.structured_clustering import StructuredClusteringLoss
from levelfield.losses.subcenter_arcface import SubCenterArcFaceLoss
from levelfield.losses.supcon import SupConLoss
from levelfield.losses.triplet_margin import TripletMarginLoss
from levelfield.losses.tuplet_margin import TupletMarginLoss
from levelfield.losses.weighted_sum import WeightedSum

__all__ = [name for name in dir() if name[0].isupper()]
