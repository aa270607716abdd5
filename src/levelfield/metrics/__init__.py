"""Retrieval, clustering and open-set scores of embeddings. Modules load on first use: `definitions` needs no torch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from levelfield.metrics.clustering import clustering_metrics as clustering_metrics
    from levelfield.metrics.clustering import partition_scores as partition_scores
    from levelfield.metrics.distances import pack_bits as pack_bits
    from levelfield.metrics.distributed import RetrievalMetrics as RetrievalMetrics
    from levelfield.metrics.health import EmbeddingHealth as EmbeddingHealth
    from levelfield.metrics.health import embedding_health as embedding_health
    from levelfield.metrics.hierarchy import hierarchical_precision_at_r as hierarchical_precision_at_r
    from levelfield.metrics.projections import PCA as PCA
    from levelfield.metrics.retrieval import retrieval_metrics as retrieval_metrics
    from levelfield.metrics.verification import Verification as Verification
    from levelfield.metrics.verification import verification_metrics as verification_metrics

_MODULES = {
    "PCA": "projections",
    "EmbeddingHealth": "health",
    "RetrievalMetrics": "distributed",
    "Verification": "verification",
    "clustering_metrics": "clustering",
    "embedding_health": "health",
    "hierarchical_precision_at_r": "hierarchy",
    "pack_bits": "distances",
    "partition_scores": "clustering",
    "retrieval_metrics": "retrieval",
    "verification_metrics": "verification",
}
__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
