"""How often the statistics of a study err: the figures of docs/statistics.md, by simulation.

    python benchmarks/study_statistics.py                  # half a minute on one core
    python benchmarks/study_statistics.py --studies 2000   # seconds, coarser
    python benchmarks/study_statistics.py --searched 2000  # searched losses that are one function, two minutes

A simulated score is the sum of what its fold does to every method, what its seed does to every method, what its run
does to all its folds, and noise. The unit is the standard deviation of a run's score (mean over 4 folds) given fold and
seed; the run has 0.7 of that variance, noise the rest.

Searched losses: their searches, runs and folds vary as in a study of results/, drawn anew for each simulated study.
"""

import tarfile
from collections.abc import Callable, Iterator
from functools import cache
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pandas as pd
from jsonargparse import auto_cli
from scipy.optimize import brentq
from scipy.stats import binomtest, nct, t, ttest_1samp

from levelfield.analysis.comparison import PAIR, compare_all
from levelfield.analysis.results import ResultRow
from levelfield.analysis.statistics import holm, paired_comparison, t_interval

RESULTS = Path(__file__).parents[1] / "results"

FOLDS = 4
RUN_SD, NOISE_SD = 0.7**0.5, (0.3 * FOLDS) ** 0.5
FOLD_SD, SEED_SD = 5.0, 0.5
LEVEL = 0.05

Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape)


def heavy_tails(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Student's t with 3 degrees of freedom, at variance 1."""
    return rng.standard_t(3, shape) / 3**0.5


def collapses(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """One in ten lies 5 standard deviations of the others below them, as a run that got stuck; at variance 1."""
    drawn = rng.standard_normal(shape) - 5 * (rng.random(shape) < 0.1) + 0.5
    return drawn / (1 + 25 * 0.1 * 0.9) ** 0.5


DRAWS: dict[str, Draw] = {"normal": normal, "heavy tails": heavy_tails, "collapses": collapses}


def simulated_scores(rng: np.random.Generator, studies: int, methods: int, runs: int, draw: Draw) -> np.ndarray:
    """Scores (studies, methods, runs, folds) of equal methods."""
    return (
        FOLD_SD * draw(rng, (studies, 1, 1, FOLDS))
        + SEED_SD * draw(rng, (studies, 1, runs, 1))
        + RUN_SD * draw(rng, (studies, methods, runs, 1))
        + NOISE_SD * draw(rng, (studies, methods, runs, FOLDS))
    )


def coverage(studies: int, runs: int, draw: Draw, seed: int = 0) -> float:
    """Share of studies whose t-interval of one method's runs holds the true mean."""
    scores = draw(np.random.default_rng(seed), (studies, runs))
    return float(np.mean([abs(np.mean(one)) <= (t_interval(one.tolist()) or 0) for one in scores]))


def false_positives(studies: int, runs: int, draw: Draw, seed: int = 0) -> float:
    """Share of studies that call two equal methods different."""
    scores = simulated_scores(np.random.default_rng(seed), studies, 2, runs, draw)
    return float(np.mean(paired_comparison(scores[:, 0], scores[:, 1]).p < LEVEL))


def folds_as_runs(studies: int, runs: int, draw: Draw, seed: int = 0) -> float:
    """False positives of a test that is not used: each fold of a run counts as a run."""
    scores = simulated_scores(np.random.default_rng(seed), studies, 2, runs, draw)
    differences = (scores[:, 0] - scores[:, 1]).reshape(studies, -1)
    return float(np.mean(ttest_1samp(differences, 0, axis=1).pvalue < LEVEL))


def family_errors(studies: int, runs: int, draw: Draw, better: int = 0, methods: int = 14) -> float:
    """Share of studies that call any two equal methods different; `better` of the methods are better by 3."""
    rng, means, wrong = np.random.default_rng(0), np.where(np.arange(methods) < better, 3.0, 0.0), 0
    first, second = np.array(list(combinations(range(methods), 2))).T
    for part in np.array_split(np.arange(studies), -(-studies // 500)):  # a part fits the cache and the memory
        scores = simulated_scores(rng, len(part), methods, runs, draw) + means[:, None, None]
        p = holm(paired_comparison(scores[:, first], scores[:, second]).p)
        wrong += int((p[:, means[first] == means[second]] < LEVEL).any(axis=1).sum())
    return wrong / studies


def power(studies: int, runs: int, seed: int = 0) -> float:
    """Share of studies that show a true difference of a standard deviation of a run's score, of two methods alone."""
    scores = simulated_scores(np.random.default_rng(seed), studies, 2, runs, normal)
    return float(np.mean(paired_comparison(scores[:, 0] + 1, scores[:, 1]).p < LEVEL))


@cache
def archived_spreads() -> list[tuple[float, float, float]]:
    """Standard deviations of a search, a run and a fold, of each kept study with second searches, in points of MAP@R.

    That of a search is half the mean square of the differences of two searches of a method, less what their runs add.
    """
    found = []
    for archive in sorted(RESULTS.glob("*/*/archive.tar.xz"), key=lambda path: path.parent.name):
        with tarfile.open(archive) as files:
            rows = pd.read_csv(files.extractfile("results.csv"))
        rows = rows.query("stage == 'test' and embedding == 'separated' and metric == 'map_at_r'")
        values = {name: 100 * lines["value"].to_numpy() for name, lines in rows.groupby("method")}
        again = [name for name in values if name.endswith("@2")]
        if again:
            most = max(map(len, values.values()))
            tables = {name: each.reshape(-1, FOLDS) for name, each in values.items() if len(each) == most}
            runs = most // FOLDS
            rest = [x - x.mean(0) - x.mean(1, keepdims=True) + x.mean() for x in tables.values()]
            fold = np.mean([(each**2).sum() for each in rest]) / ((runs - 1) * (FOLDS - 1))
            of_run = np.mean([x.mean(1).var(ddof=1) for x in tables.values()])
            gaps = [tables[name].mean() - tables[name.partition("@")[0]].mean() for name in again]
            search = np.mean(np.square(gaps)) / 2 - of_run / runs
            found.append(tuple(max(0.0, float(v)) ** 0.5 for v in (search, of_run - fold / FOLDS, fold)))
    return found


def searched_studies(
    studies: int, replicates: int = 1, methods: int = 4, searches: int = 2, runs: int = 5, draw: Draw = normal
) -> Iterator[list[ResultRow]]:
    """Rows of simulated studies of searched losses that are one function."""
    rng = np.random.default_rng(0)
    for _ in range(studies):
        spreads = archived_spreads()
        search, run, fold = spreads[rng.integers(len(spreads))]
        scores = (
            FOLD_SD * draw(rng, (replicates, 1, 1, 1, FOLDS))
            + search * draw(rng, (replicates, methods, searches, 1, 1))
            + run * draw(rng, (replicates, methods, searches, runs, 1))
            + fold * draw(rng, (replicates, methods, searches, runs, FOLDS))
        )
        names = [f"m{m}" + f"@{s + 1}" * (s > 0) for m in range(methods) for s in range(searches)]
        yield [
            ResultRow(names[m * searches + s], "test", None, r, f, "separated", "map_at_r", scores[n, m, s, r, f], n)
            for n, m, s, r, f in product(*map(range, scores.shape))
        ]


def searched_errors(studies: int, by_runs: bool = False, replicates: int = 1, draw: Draw = normal) -> int:
    """Number of these studies whose verdict calls any two losses different; `by_runs` knows one search of each."""
    methods = [f"m{m}{again}" for m in range(4) for again in ("", "@2")][:: 1 + by_runs]
    found = 0
    for rows in searched_studies(studies, replicates, draw=draw):
        pairs = [
            each for each in compare_all([row for row in rows if row.method in methods], methods) if each.kind == PAIR
        ]
        found += any(each.shown for each in pairs)
    return found


def print_searched(studies: int) -> None:
    print(f"{studies} studies of four losses that are one function, each searched twice, 5 runs, 4 folds")
    print("| verdict | any two called different, percent | 95% interval |\n| --- | --- | --- |")
    for name, draw in (("", normal), (", heavy tails", heavy_tails)):
        for title, settings in (
            ("over the runs of one search", {"by_runs": True}),
            ("over the searches", {}),
            ("over ten replicates, five cuts", {"replicates": 10}),
        ):
            number = studies if "replicates" not in settings else studies // 4
            wrong = searched_errors(number, draw=draw, **settings)
            ends = binomtest(wrong, number).proportion_ci(method="exact")
            print(
                f"| {title}{name} | {100 * wrong / number:.1f} | {100 * ends.low:.1f} to {100 * ends.high:.1f} |",
                flush=True,
            )


def detectable(runs: int, pairs: int) -> float:
    """The true difference that 80% of tests at the level of 5% / `pairs` show, by the noncentral t."""
    quantile = t.isf(LEVEL / pairs / 2, runs - 1)
    return float(brentq(lambda d: nct.sf(quantile, runs - 1, d * (runs / 2) ** 0.5) - 0.8, 0.1, 100))


def main(*, studies: int = 20_000, searched: int | None = None) -> None:
    """Print the figures of so many simulated studies, or only those of so many studies of searched losses."""
    if searched is not None:
        print_searched(searched)
        return
    families = studies // 2
    print(f"{studies} studies a figure, {families} of 14 methods; percent")
    print("| | 3 runs | 5 runs | 10 runs |\n| --- | --- | --- | --- |")

    def row(title: str, figure: Callable[[int], float], unit: float = 0.01) -> None:
        print(f"| {title} | " + " | ".join(f"{figure(runs) / unit:.1f}" for runs in (3, 5, 10)) + " |", flush=True)

    for name, draw in DRAWS.items():
        row(f"coverage of the t-interval, {name}", lambda runs, draw=draw: coverage(studies, runs, draw))
    for name, draw in DRAWS.items():
        row(f"false positives of a pair, {name}", lambda runs, draw=draw: false_positives(studies, runs, draw))
    for name, draw in DRAWS.items():
        row(f"any false positive of 91 pairs, {name}", lambda runs, draw=draw: family_errors(families, runs, draw))
    row("the same, 4 of 14 methods better by 3", lambda runs: family_errors(families, runs, normal, better=4))
    row("power of a pair at a difference of 1", lambda runs: power(studies, runs))
    for pairs in (1, 15, 91):
        row(f"difference found in 80% of studies, {pairs} pairs", lambda runs, n=pairs: detectable(runs, n), unit=1)
    row("not used: folds taken for runs, false positives", lambda runs: folds_as_runs(studies, runs, normal))


if __name__ == "__main__":
    auto_cli(main)
