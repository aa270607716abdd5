"""Retrieval and clustering scores of embeddings."""

from levelfield.metrics.clustering import clustering_metrics
from levelfield.metrics.distances import pack_bits
from levelfield.metrics.distributed import RetrievalMetrics
from levelfield.metrics.health import EmbeddingHealth, embedding_health, lag_one_autocorrelation
from levelfield.metrics.partitions import partition_scores
from levelfield.metrics.pca import PCA
from levelfield.metrics.retrieval import retrieval_metrics

__all__ = [
    "PCA",
    "EmbeddingHealth",
    "RetrievalMetrics",
    "clustering_metrics",
    "embedding_health",
    "lag_one_autocorrelation",
    "pack_bits",
    "partition_scores",
    "retrieval_metrics",
]
