"""Comparisons of a study's methods: in pairs, with an untrained row, and two searches of one method."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean
from types import MappingProxyType

import numpy as np

from levelfield.analysis.results import ResultRow
from levelfield.analysis.statistics import (
    LEVEL,
    SMALLEST_SAMPLE,
    PairedComparison,
    holm,
    paired_comparison,
    search_variance,
    swapped_halves_test,
    t_test,
)
from levelfield.metrics.definitions import SELECTED_BY
from levelfield.study.spec import BASELINE, first_search, is_baseline, one_pca

# Kinds of comparisons; Holm's correction is over all comparisons of a kind.
PAIR, OVER_BASELINE, SECOND_SEARCH = "pair", "over_baseline", "second_search"

# What the interval and the p-value of a comparison are over.
RUNS, SEARCHES, REPLICATES = "runs", "searches", "replicates"

Scores = dict[int, dict[int, float]]  # run -> fold -> score


@dataclass(frozen=True)
class Comparison:
    """Two methods, compared over their common runs.

    Args:
        method: The first method.
        other: The second method.
        kind: `pair` of different methods, `over_baseline` (`other` is an untrained row with one run), or
            `second_search` (two searches of one method, each with its own seeds).
        difference: Score of `method` minus score of `other`, a fraction: the mean over what they have in common of
            replicates, searches and runs.
        low: Lower end of the 95% interval; None with too few runs or equal differences.
        high: Upper end, as `low`.
        p: Two-sided p-value, as `low`.
        p_holm: `p` with Holm's correction over the comparisons of its kind; None for `second_search`.
        family: Number of comparisons in that correction.
        n: Runs that both methods have, or replicates.
        over: What interval and p are over: `runs`, `searches` or `replicates`.
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
    over: str = RUNS

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
    planned: str | None = None,
) -> list[Comparison]:
    """All comparisons of a study: pairs of methods, each method over an untrained row, two searches of one method.

    Holm's correction counts all pairs of `methods`, tested or not, so that a verdict keeps its meaning while a study
    grows. Methods over untrained rows are a separate family, because whether training helps is a different question.

    The test is over the widest repetition that the study has: its replicates if there are three or more, else its
    searches if a method is searched twice (`arcface@2`), else the runs. A method's score is the mean of its searches.
    Over replicates the interval is Student's, and p is that of `swapped_halves_test` where both halves of each cut were
    tested. Over searches the variance is `search_variance` of all methods: the mean of n searches has a standard error
    of s / √n, an untrained row none.

    Args:
        methods: The study's methods in order.
        baselines: The untrained row that all methods are compared with, or one for each method.
        halves: `StudySpec.halves`; methods with different test classes are not compared.
        planned: The only method that is compared with the others, decided before the test: the family is smaller.

    Returns:
        Pairs, then methods over untrained rows, then second searches, each in the order of `methods`. Methods without
        a common run are left out.
    """
    of_each = _test_scores(rows, metric, embedding)
    means = {number: _row_means(scores) for number, scores in of_each.items()}
    scores = next(iter(of_each.values()), {})
    first_searches = [method for method in methods if method == first_search(method)]
    trained = [method for method in first_searches if not is_baseline(method)]
    opponents = dict.fromkeys(trained, baselines) if isinstance(baselines, str) else baselines
    # The PCAs of the folds are nearly equal, so one PCA of the full size is the stronger baseline.
    if embedding == "concatenated":
        opponents = {m: one_pca(name) if one_pca(name) in scores else name for m, name in opponents.items()}
    families = {
        PAIR: [
            (b, a) if b == planned else (a, b)
            for a, b in combinations(first_searches, 2)
            if halves.get(a) == halves.get(b) and planned in (None, a, b)
        ],
        OVER_BASELINE: [(method, opponents[method]) for method in trained],
        SECOND_SEARCH: [(b, a) for a, b in combinations(methods, 2) if first_search(a) == first_search(b)],
    }
    luck = _luck([*means.values()])
    found = []
    for kind, family in families.items():
        compared = []
        for first, second in family:
            pair = Comparison(first, second, kind, metric, embedding, 0.0, None, None, None, None, len(family), 0)
            if len(means) > 1 or (luck is not None and kind != SECOND_SEARCH):
                compared.append(_over_replicates(pair, means, luck))
            else:
                compared.append(_over_runs(pair, scores.get(first, {}), scores.get(second, {})))
        if kind != SECOND_SEARCH:
            adjusted = holm(np.array([np.nan if c is None or c.p is None else c.p for c in compared]))
            compared = [c and replace(c, p_holm=_number(p)) for c, p in zip(compared, adjusted, strict=True)]
        found += [c for c in compared if c is not None]
    return found


def _test_scores(rows: Iterable[ResultRow], metric: str, embedding: str) -> dict[int, dict[str, Scores]]:
    """Scores by replicate (0 in a study without), method, run and fold; concatenated embeddings are fold 0."""
    found: dict[int, dict[str, Scores]] = defaultdict(lambda: defaultdict(lambda: defaultdict(dict)))
    for row in rows:
        scores = found[row.replicate or 0]
        if (row.metric, row.embedding, row.stage) == (metric, embedding, "test"):
            scores[row.method][row.run or 0][row.fold or 0] = row.value
    return dict(sorted(found.items()))


def _row_means(scores: Mapping[str, Scores]) -> dict[str, float]:
    """Row to its score: the mean over the runs that have all folds."""
    folds = max((len(run) for each in scores.values() for run in each.values()), default=0)
    whole = {row: [fmean(run.values()) for run in runs.values() if len(run) == folds] for row, runs in scores.items()}
    return {row: fmean(runs) for row, runs in whole.items() if runs}


def _luck(means: Sequence[Mapping[str, float]]) -> tuple[float, int] | None:
    """`search_variance` of the methods that are searched several times."""
    groups: dict[tuple[int, str], list[float]] = defaultdict(list)
    for number, each in enumerate(means):
        for row, score in each.items():
            groups[number, first_search(row)].append(score)
    return search_variance(groups.values())


def _over_runs(pair: Comparison, first: Scores, second: Scores) -> Comparison | None:
    folds = sorted({fold for scores in (first, second) for run in scores.values() for fold in run})
    whole = [{run for run, scores in side.items() if len(scores) == len(folds)} for side in (first, second)]
    if pair.kind == OVER_BASELINE:
        runs, partners = sorted(whole[0]), sorted(whole[1])
    else:
        runs = partners = sorted(whole[0] & whole[1])
    if not runs or not partners:
        return None
    sides = ((first, runs), (second, partners))
    tables = (np.array([[scores[run][fold] for fold in folds] for run in numbers]) for scores, numbers in sides)
    return _with_test(pair, paired_comparison(*tables), n=len(runs))


def _over_replicates(
    pair: Comparison, means: Mapping[int, Mapping[str, float]], luck: tuple[float, int] | None
) -> Comparison | None:
    """Over three replicates or more; else over the searches of those that there are.

    Args:
        means: `_row_means` of each replicate, by its number; replicates 2 c and 2 c + 1 test the halves of cut c.
    """
    sides: dict[int, list[list[float]]] = {}
    for number, scores in means.items():
        alone = pair.kind == SECOND_SEARCH  # of other comparisons, a side is the mean of a method's searches
        both = [
            [score for row, score in scores.items() if side == (row if alone else first_search(row))]
            for side in (pair.method, pair.other)
        ]
        if all(both):
            sides[number] = both
    if not sides:
        return None
    first, second = (np.array([[fmean(both[side])] for both in sides.values()]) for side in (0, 1))
    result = paired_comparison(first, second)
    if len(sides) >= SMALLEST_SAMPLE:
        found = _with_test(pair, result, n=len(sides), over=REPLICATES)
        swapped = [{2 * cut, 2 * cut + 1} <= {*sides} for cut in {number // 2 for number in sides}]
        if all(swapped) and found.p is not None:
            differences = (first - second).reshape(-1, 2)
            found = replace(found, p=swapped_halves_test(differences))
        return found
    if luck is None:
        return _with_test(pair, result, n=len(sides), over=REPLICATES)
    random = [side for both in sides.values() for side in both[: 1 if pair.kind == OVER_BASELINE else 2]]
    error = math.sqrt(luck[0] * sum(1 / len(side) for side in random)) / len(sides)
    difference = float(result.difference)
    low, high, p = t_test(difference, error, luck[1])
    searches = min(map(len, random))
    return replace(pair, difference=difference, low=low, high=high, p=p, n=searches, over=SEARCHES)


def _with_test(pair: Comparison, result: PairedComparison, n: int, over: str = RUNS) -> Comparison:
    low, high, p = (_number(value) for value in (result.low, result.high, result.p))
    return replace(pair, difference=float(result.difference), low=low, high=high, p=p, n=n, over=over)


def _number(value: np.ndarray | float) -> float | None:
    return None if np.isnan(value) else float(value)
