"""Methods that the Reality Check does not have, next to its 14 on the same sets.

    python scripts/laptop_later.py grocery_store     # prints the commands that add the rows and keep them

The page has a section of it (scripts/laptop_answer.py) once a set holds all of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import fmean, median

from laptop_gallery import TITLES
from laptop_sets import RESULTS_ONLY, SETS, LaptopSet
from laptop_words import Section, mean_with, means, said_mean, table

from levelfield.analysis.agreement import kendall
from levelfield.analysis.comparison import PAIR, SECOND_SEARCH, Comparison, compare_all
from levelfield.analysis.ranks import rank_methods
from levelfield.analysis.verdicts import points, turned

# Years of the papers; the Reality Check's own as its Table 7 has them, those of a regularizer its own.
FIRST = {
    "contrastive": 2006,
    "triplet_margin": 2006,
    "ntxent": 2016,
    "proxy_nca": 2017,
    "margin": 2017,
    "margin_per_class": 2017,
    "normalized_softmax": 2017,
    "cosface": 2018,
    "arcface": 2019,
    "fast_ap": 2019,
    "signal_to_noise_ratio": 2019,
    "multi_similarity": 2019,
    "multi_similarity_miner": 2019,
    "soft_triple": 2019,
}
LATER = {
    "smooth_ap": 2020,
    "proxy_nca_plus_plus": 2020,
    "magface": 2021,
    "roadmap": 2021,
    "adaface": 2022,
    "pnp": 2022,
    "recall_at_k": 2022,
    "hyperbolic_cross_entropy": 2022,
    "hist": 2022,
    "sigmoid_pair": 2023,
    "contextual": 2023,
    "potential_field": 2025,
}
REGULARIZED = {
    "normalized_softmax_center_invariance": 2017,
    "ntxent_koleo": 2019,
    "ntxent_zero_mean": 2019,
    "ntxent_uniformity": 2020,
    "ntxent_anti_collapse": 2020,
    "ntxent_spherical_constraint": 2020,
}
YEARS = {**FIRST, **LATER, **REGULARIZED}
ADDED = (*LATER, *REGULARIZED)
TWICE = ("smooth_ap", "ntxent_koleo")


def commands(name: str) -> list[str]:
    """What adds the rows to a set's study, from its archive or its folder, and keeps them."""
    words = [f"levelfield study run laptop/{name} --data.root DIR --from docs/results/laptop/{name}/study.tar.xz"]
    words += [f"--add-method {method}" for method in ADDED]
    words += [f"--second_searches.{method} 1" for method in TWICE]
    words += [f'--reopen-test "after the Reality Check" --mixed-versions --output outputs/laptop/{name}']
    return [" \\\n  ".join(words), f"python scripts/laptop_results.py outputs/laptop/{name}"]


def without_regularizer(method: str) -> str:
    return next(loss for loss in ("ntxent", "normalized_softmax") if method.startswith(f"{loss}_"))


def has_later_methods(each: LaptopSet) -> bool:
    return set(ADDED) <= set(each.table())


def later_section(sets: Sequence[LaptopSet]) -> list[Section]:
    """One section, or none while no set holds all methods."""
    there, scores, found = _measured(sets)
    if not there:
        return []
    n, names = len(there), [each.name for each in there]
    head = ["", "year", *names, "mean rank", "over contrastive", "shown better", "shown worse"]
    overall = {method: fmean(scores[each.name][method] for each in there) for method in YEARS}
    ranks = rank_methods(scores) if n > 1 else None
    rows = []
    for method in sorted(YEARS, key=overall.__getitem__, reverse=True):
        cells = [f"`{method}`", str(YEARS[method]), *(said_mean(each.table()[method]) for each in there)]
        cells.append("" if ranks is None else f"{ranks.mean_ranks[method]:.1f}")
        rows.append([*cells, *_over("contrastive", method, there, found)])
    return [
        Section(
            "Are newer losses better?",
            _short(there, scores, found),
            [
                f"Test MAP@R, percent, separated, on {n} set{'s' * (n > 1)}; differences in points, means over sets. "
                "Shown: paired over ten runs, Holm's correction over all pairs of a set, 5%.",
                "",
                *table(head, rows),
                "",
                "A regularizer beside the same loss without it, each searched:",
                "",
                *_regularizers(there, found),
            ],
        )
    ]


def later_choice(sets: Sequence[LaptopSet]) -> list[str]:
    """What the rows say to somebody who chooses a loss; nothing while no set holds them."""
    there, scores, found = _measured(sets)
    if not there:
        return []
    return [
        "## Newer losses",
        "",
        f"{_short(there, scores, found)} {_first_ranks(scores)}"
        "[All rows](results/laptop/README.md#are-newer-losses-better). The regularizers:",
        "",
        *_regularizers(there, found),
        "",
    ]


def _first_ranks(scores: dict[str, dict[str, float]], number: int = 5) -> str:
    """The first few of all methods by their mean rank over the sets, and how far apart ranks must be to differ."""
    if len(scores) < 2:
        return ""
    ranks = rank_methods(scores)
    first = ", ".join(f"`{method}` {rank:.1f}" for method, rank in list(ranks.mean_ranks.items())[:number])
    return (
        f"By mean rank of all {len(ranks.mean_ranks)} over these sets: {first}; none that differ by less than "
        f"{ranks.critical_difference:.1f} are told apart. "
    )


def _regularizers(there: Sequence[LaptopSet], found: dict[str, list[Comparison]]) -> list[str]:
    head = ["points over the same loss without it", "shown better", "shown worse"]
    return table(["", *head], [[f"`{m}`", *_over(without_regularizer(m), m, there, found)] for m in REGULARIZED])


def _names(methods: Sequence[str]) -> str:
    return ", ".join(f"`{method}`" for method in methods) or "none"


def _measured(
    sets: Sequence[LaptopSet],
) -> tuple[list[LaptopSet], dict[str, dict[str, float]], dict[str, list[Comparison]]]:
    """The sets that hold all methods, and of each the means and what compares them."""
    there = [each for each in sets if has_later_methods(each)]
    compared = [*YEARS, *(f"{method}@2" for method in TWICE)]
    scores = {each.name: means(each.table(), list(YEARS)) for each in there}
    return there, scores, {each.name: compare_all(each.rows, compared) for each in there}


def _pair(found: Sequence[Comparison], method: str, other: str) -> Comparison:
    comparison = next(c for c in found if c.kind == PAIR and {c.method, c.other} == {method, other})
    return comparison if comparison.method == method else turned(comparison)


def _over(
    other: str, method: str, there: Sequence[LaptopSet], found: dict[str, list[Comparison]]
) -> tuple[str, str, str]:
    """The mean difference of a method over another, and on how many sets it is shown better, and worse."""
    if method == other:
        return "", "", ""
    compared = [_pair(found[each.name], method, other) for each in there]
    better = sum(c.shown and c.difference > 0 for c in compared)
    worse = sum(c.shown and c.difference < 0 for c in compared)
    return mean_with([c.difference for c in compared]), str(better), str(worse)


def _short(there: Sequence[LaptopSet], scores: dict[str, dict[str, float]], found: dict[str, list[Comparison]]) -> str:
    gains = [max(s[m] for m in ADDED) - max(s[m] for m in FIRST) for s in scores.values()]
    taus = [kendall({m: float(YEARS[m]) for m in YEARS}, {m: s[m] for m in YEARS}).tau for s in scores.values()]
    better = {}
    for each in there:
        best = max(FIRST, key=scores[each.name].__getitem__)
        compared = [_pair(found[each.name], method, best) for method in ADDED]
        better[TITLES[each.name]] = [c.method for c in compared if c.shown and c.difference > 0]
    where = [f"{name} ({_names(methods)})" for name, methods in better.items() if methods]
    searches = [abs(c.difference) for each in there for c in found[each.name] if c.kind == SECOND_SEARCH]
    return (
        f"{len(ADDED)} methods were added to the 14 and searched in the same way: {len(LATER)} losses of "
        f"{min(LATER.values())} to {max(LATER.values())}, and {len(REGULARIZED)} of a loss with a regularizer of "
        f"{min(REGULARIZED.values())} to {max(REGULARIZED.values())}. The best of these {len(ADDED)} less the best of "
        f"the 14, over {len(there)} sets: {mean_with(gains)} points, median {points(median(gains))}. Significantly "
        f"better than the best of the 14 on {len(where)} of {len(there)} sets: {'; '.join(where) or 'none'}. Kendall's "
        f"tau of the year with MAP@R: {', '.join(f'{tau:+.2f}' for tau in taus)}. Two searches of one of them differ "
        f"by up to {100 * max(searches, default=0.0):.1f} points."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", metavar="set", help="all by default")
    known = [name for name in SETS if name not in RESULTS_ONLY]
    sets = parser.parse_args().sets or known
    if missing := [name for name in sets if name not in known]:
        parser.error(f"{missing[0]} is none of {', '.join(known)}")
    for name in sets:
        print("\n".join(commands(name)))


if __name__ == "__main__":
    main()
