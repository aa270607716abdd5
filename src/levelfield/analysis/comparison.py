"""Comparisons of a study's methods: in pairs, with an untrained row, and two searches of one method."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from types import MappingProxyType

import numpy as np

from levelfield.analysis.results import ResultRow
from levelfield.analysis.statistics import LEVEL, holm, paired_comparison
from levelfield.metrics.definitions import SELECTED_BY
from levelfield.study.spec import BASELINE, first_search, is_baseline, one_pca

# Kinds of comparisons; Holm's correction is over all comparisons of a kind.
PAIR, OVER_BASELINE, SECOND_SEARCH = "pair", "over_baseline", "second_search"

Scores = dict[int, dict[int, float]]  # run -> fold -> score


@dataclass(frozen=True)
class Comparison:
    """Two methods, compared over their common runs.

    Args:
        method: The first method.
        other: The second method.
        kind: `pair` of different methods, `over_baseline` (`other` is an untrained row with one run), or
            `second_search` (two searches of one method, each with its own seeds).
        difference: Score of `method` minus score of `other`, mean over the runs, a fraction.
        low: Lower end of the 95% interval over the runs; None with too few runs or equal differences.
        high: Upper end, as `low`.
        p: Two-sided p-value, as `low`.
        p_holm: `p` with Holm's correction over the comparisons of its kind; None for `second_search`.
        family: Number of comparisons in that correction.
        n: Runs that both methods have.
    """

    method: str
    other: str
    kind: str
    metric: str
    embedding: str
    difference: float
    low: float | None
    high: float | None
    p: float | None
    p_holm: float | None
    family: int
    n: int

    @property
    def shown(self) -> bool:
        """Whether the difference is significant at 5% with Holm's correction."""
        return self.p_holm is not None and self.p_holm < LEVEL

    def turned(self) -> "Comparison":
        """The same comparison with the methods exchanged."""
        low, high = (None if end is None else -end for end in (self.high, self.low))
        return replace(self, method=self.other, other=self.method, difference=-self.difference, low=low, high=high)

    def named(self, names: Mapping[str, str]) -> "Comparison":
        """The same comparison with the rows' names for readers, `shown_names`."""
        return replace(self, method=names[self.method], other=names[self.other])


def compare_all(
    rows: Iterable[ResultRow],
    methods: Sequence[str],
    metric: str = SELECTED_BY,
    embedding: str = "separated",
    baselines: Mapping[str, str] | str = BASELINE,
    halves: Mapping[str, str] = MappingProxyType({}),
) -> list[Comparison]:
    """All comparisons of a study: pairs of methods, each method over an untrained row, two searches of one method.

    Holm's correction counts all pairs of `methods`, tested or not, so that a verdict keeps its meaning while a study
    grows. Methods over untrained rows are a separate family, because whether training helps is a different question. A
    second search (`arcface@2`) measures the effect of the search, so it is compared only with the first.

    Args:
        methods: The study's methods in order.
        baselines: The untrained row that all methods are compared with, or one for each method.
        halves: `StudySpec.halves`; methods with different test classes are not compared.

    Returns:
        Pairs, then methods over untrained rows, then second searches, each in the order of `methods`. Methods without
        a common run are left out.
    """
    scores = scores_of(rows, metric, embedding, "test")
    first_searches = [method for method in methods if method == first_search(method)]
    trained = [method for method in first_searches if not is_baseline(method)]
    opponents = dict.fromkeys(trained, baselines) if isinstance(baselines, str) else baselines
    # The PCAs of the folds are nearly equal, so one PCA of the full size is the stronger baseline.
    if embedding == "concatenated":
        opponents = {m: one_pca(name) if one_pca(name) in scores else name for m, name in opponents.items()}
    families = {
        PAIR: [(a, b) for a, b in combinations(first_searches, 2) if halves.get(a) == halves.get(b)],
        OVER_BASELINE: [(method, opponents[method]) for method in trained],
        SECOND_SEARCH: [(b, a) for a, b in combinations(methods, 2) if first_search(a) == first_search(b)],
    }
    found = []
    for kind, family in families.items():
        compared = [
            _compare(first, second, kind, metric, embedding, len(family), scores.get(first, {}), scores.get(second, {}))
            for first, second in family
        ]
        if kind != SECOND_SEARCH:
            adjusted = holm(np.array([np.nan if c is None or c.p is None else c.p for c in compared]))
            compared = [c and replace(c, p_holm=_number(p)) for c, p in zip(compared, adjusted, strict=True)]
        found += [c for c in compared if c is not None]
    return found


def scores_of(rows: Iterable[ResultRow], metric: str, embedding: str, stage: str) -> dict[str, Scores]:
    """Scores by method, run and fold; concatenated embeddings are fold 0."""
    scores: dict[str, Scores] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        if (row.metric, row.embedding, row.stage) == (metric, embedding, stage):
            scores[row.method][row.run or 0][row.fold or 0] = row.value
    return scores


def _compare(
    method: str, other: str, kind: str, metric: str, embedding: str, family: int, first: Scores, second: Scores
) -> Comparison | None:
    folds = sorted({fold for scores in (first, second) for run in scores.values() for fold in run})
    whole = [{run for run, scores in side.items() if len(scores) == len(folds)} for side in (first, second)]
    if kind == OVER_BASELINE:
        runs, partners = sorted(whole[0]), sorted(whole[1])
    else:
        runs = partners = sorted(whole[0] & whole[1])
    if not runs or not partners:
        return None
    result = paired_comparison(_table(first, runs, folds), _table(second, partners, folds))
    low, high, p = (_number(value) for value in (result.low, result.high, result.p))
    return Comparison(
        method, other, kind, metric, embedding, float(result.difference), low, high, p, None, family, len(runs)
    )


def _table(scores: Scores, runs: Sequence[int], folds: Sequence[int]) -> np.ndarray:
    return np.array([[scores[run][fold] for fold in folds] for run in runs])


def _number(value: np.ndarray | float) -> float | None:
    return None if np.isnan(value) else float(value)
