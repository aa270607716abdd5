"""Nearest neighbours among the test samples, the best and worst queries, and confused classes.

Shapes: Q queries, G gallery items, K neighbours.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
from levelfield.study.test_scores import EmbeddedTest

# If there are more queries, this many are drawn and scored: enough to choose a few.
MOST_QUERIES = 4000
GROUPS = ("best", "median", "worst")


@dataclass(frozen=True)
class Confusion:
    """Two confused classes: samples of one have their nearest neighbour in the other.

    Args:
        classes: Their labels.
        count: Queries of either class whose nearest neighbour is of the other.
        queries: Scored queries of both.
        examples: Such queries, each with its nearest neighbour; positions.
    """

    classes: tuple[int, int]
    count: int
    queries: int
    examples: list[tuple[int, int]]


class Retrieval:
    """The test samples, ranked by one model; positions among the embeddings identify samples.

    Args:
        embedded: Stored test embeddings.
        distance: `cosine`, `euclidean`, `hamming` or `poincare`.
    """

    def __init__(self, embedded: EmbeddedTest, distance: str = "cosine") -> None:
        self.distance = distance
        self.embeddings = embedded.samples.embeddings
        self.labels = embedded.samples.labels.numpy()
        everything = np.arange(len(self.labels))
        is_query = embedded.is_query
        self.excludes_self = is_query is None
        self.queries = everything if is_query is None else np.flatnonzero(is_query.numpy())
        self.gallery = everything if is_query is None else np.flatnonzero(~is_query.numpy())
        prepare, self._similarity = DISTANCES[distance]
        self._held = prepare(self.embeddings)

    def nearest(self, queries: Sequence[int] | Int[np.ndarray, " Q"], count: int) -> Int[np.ndarray, "Q K"]:
        """The `count` nearest gallery items of each query, nearest first; ties as in `nearest`."""
        positions = torch.from_numpy(np.asarray(queries, dtype=np.int64))
        gallery = self._held[torch.from_numpy(self.gallery)]
        itself = positions if self.excludes_self else None
        _, found = nearest(self._held[positions], gallery, count, itself, self._similarity)
        return self.gallery[found.numpy()]

    @cached_property
    def scores(self) -> Float[np.ndarray, " Q"]:
        """MAP@R of each query; NaN without a match and for queries that were not drawn."""
        labels = torch.from_numpy(self.labels)
        inputs = (self.embeddings, labels)
        if not self.excludes_self:
            queries, gallery = torch.from_numpy(self.queries), torch.from_numpy(self.gallery)
            inputs = (self.embeddings[queries], labels[queries], self.embeddings[gallery], labels[gallery])  # type: ignore[assignment]
        drawn = {"num_queries": MOST_QUERIES} if len(self.queries) > MOST_QUERIES else {}
        found = retrieval_metrics(*inputs, metrics=(SELECTED_BY,), distance=self.distance, per_query=True, **drawn)  # type: ignore[arg-type]
        scores = found[SELECTED_BY]
        assert isinstance(scores, Tensor)
        return scores.numpy()

    def examples(self, count: int) -> dict[str, list[int]]:
        """`count` of the best, the median and the worst queries, of different classes within each group."""
        known = np.flatnonzero(np.isfinite(self.scores))
        shuffled = known[np.random.default_rng(seed_of("shown queries")).permutation(len(known))]
        upward = shuffled[np.argsort(self.scores[shuffled], kind="stable")]
        middle = upward[np.argsort(np.abs(np.arange(len(upward)) - (len(upward) - 1) / 2), kind="stable")]
        orders = {"best": upward[::-1], "median": middle, "worst": upward}
        taken: set[int] = set()
        found = {}
        for group in GROUPS:
            chosen = self._of_other_classes(orders[group], count, taken)
            taken |= set(chosen)
            found[group] = [int(self.queries[place]) for place in chosen]
        return found

    def _of_other_classes(self, order: Int[np.ndarray, " Q"], count: int, taken: set[int]) -> list[int]:
        chosen: dict[int, int] = {}
        for place in order:
            label = int(self.labels[self.queries[place]])
            if int(place) not in taken and label not in chosen:
                chosen[label] = int(place)
            if len(chosen) == count:
                break
        return list(chosen.values())

    @cached_property
    def _first(self) -> tuple[Int[np.ndarray, " Q"], Int[np.ndarray, " Q"]]:
        """The scored queries, and the nearest neighbour of each."""
        scored = self.queries[np.isfinite(self.scores)]
        return scored, self.nearest(scored, 1)[:, 0]

    def confusions(self, count: int, examples: int) -> list[Confusion]:
        """The `count` pairs of classes that are confused most, each with at most `examples` examples."""
        scored, first = self._first
        wrong = self.labels[scored] != self.labels[first]
        pairs = list(self._pairs(scored[wrong], first[wrong]))
        counted = Counter(pairs)
        of_class = Counter(self.labels[scored].tolist())
        found = []
        for pair, number in sorted(counted.items(), key=lambda item: (-item[1], item[0]))[:count]:
            of_pair = [each for each, other in enumerate(pairs) if other == pair][:examples]
            shown = [(int(scored[wrong][each]), int(first[wrong][each])) for each in of_pair]
            found.append(Confusion(pair, number, of_class[pair[0]] + of_class[pair[1]], shown))
        return found

    def confused(self, classes: tuple[int, int]) -> int:
        """Queries of either of two classes whose nearest neighbour is of the other."""
        scored, first = self._first
        return sum(pair == classes for pair in self._pairs(scored, first))

    def _pairs(self, scored: Int[np.ndarray, " Q"], first: Int[np.ndarray, " Q"]) -> Iterator[tuple[int, int]]:
        for a, b in zip(self.labels[scored].tolist(), self.labels[first].tolist(), strict=True):
            yield (a, b) if a < b else (b, a)
