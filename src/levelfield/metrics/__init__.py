"""Retrieval and clustering scores of embeddings."""

from levelfield.metrics.distances import pack_bits
from levelfield.metrics.distributed import RetrievalMetrics
from levelfield.metrics.pca import PCA
from levelfield.metrics.retrieval import retrieval_metrics

__all__ = ["PCA", "RetrievalMetrics", "pack_bits", "retrieval_metrics"]
