"""Nearest neighbours among the test samples, and the best and worst queries.

Shapes: Q queries, K neighbours.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from levelfield.core.seeds import seed_of
from levelfield.metrics import retrieval_metrics
from levelfield.metrics.definitions import SELECTED_BY
from levelfield.metrics.distances import DISTANCES
from levelfield.metrics.nearest import nearest
from levelfield.study.test_scores import EmbeddedTest, retrieval_sets

# If there are more queries, this many are drawn and scored: enough to choose a few.
MOST_QUERIES = 4000


class Retrieval:
    """The test samples, ranked by one model; positions among the embeddings identify samples.

    Args:
        embedded: Stored test embeddings.
        distance: `cosine`, `euclidean`, `hamming` or `poincare`.
    """

    def __init__(self, embedded: EmbeddedTest, distance: str = "cosine") -> None:
        self.samples, self.is_query, self.distance = embedded.samples, embedded.is_query, distance
        self.groups = embedded.groups
        self.labels = embedded.samples.labels.numpy()
        everything = torch.arange(len(self.labels))
        self.queries = everything if self.is_query is None else everything[self.is_query]
        self.gallery = everything if self.is_query is None else everything[~self.is_query]

    def nearest(self, queries: Sequence[int], count: int) -> Int[np.ndarray, "Q K"]:
        """The `count` nearest gallery items of each query, nearest first; ties as in `nearest`."""
        prepare, similarity = DISTANCES[self.distance]
        held, positions = prepare(self.samples.embeddings), torch.tensor(queries)
        itself = positions if self.is_query is None else None
        _, found = nearest(held[positions], held[self.gallery], count, itself, similarity)
        return self.gallery[found].numpy()

    @cached_property
    def scores(self) -> Float[np.ndarray, " Q"]:
        """MAP@R of each query; NaN without a match and for queries that were not drawn."""
        sets = retrieval_sets(self.samples.embeddings, self.samples.labels, self.is_query, groups=self.groups)
        drawn = MOST_QUERIES if len(self.queries) > MOST_QUERIES else None
        scores = retrieval_metrics(
            **sets, metrics=(SELECTED_BY,), distance=self.distance, per_query=True, num_queries=drawn
        )[SELECTED_BY]
        assert isinstance(scores, Tensor)
        return scores.numpy()

    def examples(self, count: int) -> dict[str, list[int]]:
        """`count` of the best, the median and the worst queries, of different classes within each group."""
        known = np.flatnonzero(np.isfinite(self.scores))
        shuffled = known[np.random.default_rng(seed_of("shown queries")).permutation(len(known))]
        upward = shuffled[np.argsort(self.scores[shuffled], kind="stable")]
        middle = upward[np.argsort(np.abs(np.arange(len(upward)) - (len(upward) - 1) / 2), kind="stable")]
        taken: set[int] = set()
        found = {}
        for group, order in {"best": upward[::-1], "median": middle, "worst": upward}.items():
            of_class: dict[int, int] = {}
            for query in self.queries[torch.from_numpy(order.copy())].tolist():
                if query not in taken and len(of_class) < count:
                    of_class.setdefault(int(self.labels[query]), query)
            found[group] = list(of_class.values())
            taken |= set(found[group])
        return found
