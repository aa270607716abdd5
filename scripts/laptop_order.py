"""Which loss is best on the laptop sets: scores, differences, ranks, and agreement with the papers' orders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import fmean

import numpy as np
from laptop_sets import LaptopSet, scores_by_method
from laptop_words import Section, between, mean_with, means, said_mean, said_pairs, said_tau, table
from scipy.stats import spearmanr

from levelfield.analysis.agreement import kendall
from levelfield.analysis.comparison import PAIR, Comparison, compare_all
from levelfield.analysis.ranks import rank_methods
from levelfield.analysis.results import ResultRow
from levelfield.analysis.statistics import t_interval
from levelfield.analysis.verdicts import points, turned
from levelfield.report.figures.style import style, to_svg
from levelfield.report.ranks_figure import ranks_figure
from levelfield.storage.atomic import write_atomically
from levelfield.study.spec import BASELINE, first_search, is_baseline
from papers.drawing import DATASETS
from papers.published import papers
from papers.reality_check.figures import table_scores, validation_against_test

FEATURES, LDA = f"{BASELINE}[features]", f"{BASELINE}[lda]"
CLASSIC = ("contrastive", "triplet_margin")
PAPERS = {"cub200": "CUB", "cars196": "Cars", "sop": "SOP"}


def score_section(sets: Sequence[LaptopSet]) -> Section:
    """Test MAP@R of everything, and which trained losses end below the untrained trunk."""
    methods = sets[0].methods
    baselines = [row for row in sets[0].spec.rows if is_baseline(row)]
    alone = {each.name: each.table() for each in sets}
    together = {each.name: each.table(embedding="concatenated") for each in sets}
    overall = {method: fmean(alone[each.name][method].mean() for each in sets) for method in methods}
    rows = [
        [f"`{method}`", *(f"{said_mean(alone[e.name][method])} / {said_mean(together[e.name][method])}" for e in sets)]
        for method in [*baselines, *sorted(methods, key=overall.__getitem__, reverse=True)]
    ]

    def below(tables: dict[str, dict[str, np.ndarray]], baseline: str) -> list[tuple[str, str]]:
        return [(n, m) for n, found in tables.items() for m in methods if found[m].mean() < found[baseline].mean()]

    lost, lost_together = below(alone, BASELINE), below(together, FEATURES)
    below_features = len(below(alone, FEATURES))
    clear = sum(clearly_below(alone[name][m], float(alone[name][BASELINE].mean())) for name, m in lost)
    by_lda = [
        sum(found[e.name][LDA].mean() > max(found[e.name][m].mean() for m in methods) for e in sets)
        for found in (alone, together)
    ]
    total = len(sets) * len(methods)
    of_each = ", ".join(f"{each.name} {sum(name == each.name for name, _ in lost)}" for each in sets)
    short = (
        f"{below_features} of {total} searched losses end below the untrained trunk's features as they are, and "
        f"{len(lost)} below their PCA of the same length"
        f" ({of_each}), {clear} of them by more than their 95% interval over runs; with the four folds' embeddings "
        f"side by side {len(lost_together)} of {total} end below the trunk's features as they are. LDA is above every "
        f"loss on {by_lda[0]} of {len(sets)} sets, side by side on {by_lda[1]}."
    )
    lines = [
        "MAP@R on the test classes, percent, separated (the mean of the four folds' scores, of embeddings of 128 "
        "numbers each) / concatenated (the score of their 512 side by side): means of ten runs ± half a 95% t-interval "
        "over them. Losses by their separated mean over the sets. `pretrained` is the untrained trunk reduced to 128 "
        "by a PCA; `features` and `pca512` are longer, `lda` has one number fewer than classes trained on, at most "
        "128.",
        "",
        *table(["", *(each.name for each in sets)], rows),
        "",
        f"Below `{BASELINE}`, separated: {said_pairs(lost) or 'none'}.",
        "",
        f"Below `{FEATURES}`, concatenated: {said_pairs(lost_together) or 'none'}.",
    ]
    return Section("What do they score, and does training pay?", short, lines)


def clearly_below(scores: np.ndarray, baseline: float) -> bool:
    """Whether the mean over runs is below a score by more than its 95% interval."""
    runs = scores.mean(axis=1).tolist()
    return fmean(runs) + (t_interval(runs) or 0.0) < baseline


def over(comparisons: Sequence[Comparison], classic: str) -> dict[str, Comparison]:
    """Each method's comparison with a classic loss, of the family of all pairs."""
    found = {}
    for comparison in comparisons:
        if comparison.kind == PAIR and classic in (comparison.method, comparison.other):
            right_way = turned(comparison) if comparison.method == classic else comparison
            found[right_way.method] = right_way
    return found


def better_section(sets: Sequence[LaptopSet]) -> Section:
    """Whether a loss is better than contrastive or triplet, by how much, on how many sets."""
    methods, n = sets[0].methods, len(sets)
    found = {classic: {each.name: over(each.comparisons, classic) for each in sets} for classic in CLASSIC}
    rows, always = [], {classic: [] for classic in CLASSIC}
    for method in methods:
        cells = []
        for classic in CLASSIC:
            if method == classic:
                cells += ["", "", ""]
                continue
            of_sets = [found[classic][each.name][method] for each in sets]
            wins = sum(c.shown and c.difference > 0 for c in of_sets)
            losses = sum(c.shown and c.difference < 0 for c in of_sets)
            if wins == n:
                always[classic].append(method)
            cells += [mean_with([c.difference for c in of_sets]), f"{wins}", f"{losses}"]
        rows.append([f"`{method}`", *cells])
    lines = [
        "Differences in test MAP@R, points: mean over the sets"
        + (" ± half a 95% t-interval over them" if n > 2 else "")
        + ", and on how many sets a difference is shown (paired over ten runs, Holm's correction over all 91 pairs "
        "of a "
        "set, 5%).",
        "",
        *table(
            ["", "over contrastive", "shown better", "shown worse", "over triplet", "shown better", "shown worse"], rows
        ),
        "",
        "The best of each set:",
        "",
    ]
    best_rows, clear = [], 0
    for each in sets:
        by_mean = means(each.table(), methods)
        best = max(by_mean, key=by_mean.__getitem__)
        cells = [each.name, f"`{best}`"]
        for classic in CLASSIC:
            c = found[classic][each.name].get(best)
            cells.append("" if c is None else said(c))
        level = [m for m in methods if m != best and not pair(each, best, m).shown]
        largest = max((abs(c.difference) for c in each.second_searches), default=0.0)
        gap = by_mean[best] - by_mean["contrastive"]
        clear += gap > largest
        cells += [", ".join(f"`{m}`" for m in level) or "none", f"{100 * largest:.1f}"]
        best_rows.append(cells)
    head = [
        "",
        "best",
        "over contrastive",
        "over triplet",
        "no difference from it shown",
        "two searches of a loss differ by up to",
    ]
    lines += table(head, best_rows)
    never = {
        c: [
            m
            for m in methods
            if m != c and not any(found[c][e.name][m].shown and found[c][e.name][m].difference > 0 for e in sets)
        ]
        for c in CLASSIC
    }
    every = f"all {n} sets" if n > 1 else f"{sets[0].name}"
    short = " ".join(
        [
            f"Over {name}, {len(always[classic])} of {len(methods) - 1} losses are shown better on {every}"
            + (f" ({', '.join(f'`{m}`' for m in always[classic])})" if always[classic] else "")
            + f", {len(never[classic])} on none."
            for classic, name in zip(CLASSIC, ("contrastive", "triplet"), strict=True)
        ]
        + [
            f"The best of a set, found on its test classes, is above contrastive by "
            f"{range_of([means(e.table(), methods) for e in sets])} points, on {clear} of {n} by more than any two "
            f"searches of one loss there differ.{searched_again(sets)}"
        ]
    )
    return Section("Is any loss better than contrastive or triplet?", short, lines)


def searched_again(sets: Sequence[LaptopSet]) -> str:
    """What is left of the first finding with the second searches in place of the first."""
    names = sorted({first_search(c.method) for each in sets for c in each.second_searches})
    if len(sets) < 2 or not names:
        return ""
    again = {each.name: second_in_place(each) for each in sets}
    ours = [over(each.comparisons, CLASSIC[0]) for each in sets]
    theirs = [over(compare_all(again[each.name], each.methods), CLASSIC[0]) for each in sets]

    def wins(found: Sequence[dict[str, Comparison]], method: str) -> int:
        return sum(each[method].shown and each[method].difference > 0 for each in found)

    most = max(ours[0], key=lambda method: wins(ours, method))
    ranks = rank_methods({e.name: means(scores_by_method(again[e.name], "test"), e.methods) for e in sets})
    return (
        f" It rests on one search of each: with the second ones of {', '.join(f'`{name}`' for name in names)} in "
        f"their place `{most}` is shown better than contrastive on {wins(theirs, most)} instead of "
        f"{wins(ours, most)}, and Friedman's p below is {ranks.p:.3f}."
    )


def second_in_place(each: LaptopSet) -> list[ResultRow]:
    """A set's rows, with those of the second searches under the names of the first."""
    twice = {first_search(name): name for name in each.spec.methods if first_search(name) != name}
    found = [row for row in each.rows if row.method not in twice]
    return [replace(row, method=first_search(row.method)) for row in found]


def range_of(by_mean: Sequence[dict[str, float]]) -> str:
    gaps = [max(each.values()) - each["contrastive"] for each in by_mean]
    return f"{100 * gaps[0]:.1f}" if len(gaps) == 1 else f"{100 * min(gaps):.1f} to {100 * max(gaps):.1f}"


def pair(each: LaptopSet, first: str, second: str) -> Comparison:
    return next(c for c in each.comparisons if c.kind == PAIR and {c.method, c.other} == {first, second})


def said(c: Comparison) -> str:
    """`+1.2 (+0.5 to +1.9), Holm's p 0.003`."""
    interval = "" if c.low is None or c.high is None else f" ({between(c.low, c.high)})"
    p = "" if c.p_holm is None else f", Holm's p {'< 0.001' if c.p_holm < 0.001 else f'{c.p_holm:.3f}'}"
    return f"{points(c.difference)}{interval}{p}"


def rank_section(sets: Sequence[LaptopSet], folder: Path) -> Section:
    """Mean ranks, Friedman's test and the critical difference; the diagram is written into `folder`."""
    question = "Which ranks best over the sets?"
    if len(sets) < 2:
        return Section(question, "That takes two sets.", [])
    ranks = rank_methods({each.name: means(each.table(), each.methods) for each in sets})
    with style():
        write_atomically(folder / "ranks.svg", to_svg(ranks_figure(ranks)))
    names = list(ranks.mean_ranks)
    apart = [
        (a, b)
        for a, b in combinations(names, 2)
        if ranks.mean_ranks[b] - ranks.mean_ranks[a] >= ranks.critical_difference
    ]
    p = "< 0.001" if ranks.p < 0.001 else f"= {ranks.p:.3f}"
    short = (
        f"Friedman's p {p} over {len(sets)} sets; mean ranks must differ by {ranks.critical_difference:.1f} of "
        f"{len(names) - 1}, which {len(apart)} of {len(names) * (len(names) - 1) // 2} pairs do. Best mean ranks: "
        + ", ".join(f"`{name}` {ranks.mean_ranks[name]:.1f}" for name in names[:3])
        + "."
    )
    lines = [
        "![Mean ranks with the critical difference](ranks.svg)",
        "",
        *table(["", "mean rank"], [[f"`{name}`", f"{rank:.1f}"] for name, rank in ranks.mean_ranks.items()]),
    ]
    return Section(question, short, lines)


def paper_orders() -> dict[str, dict[str, float]]:
    """The Reality Check's separated MAP@R of batch 32, by our names of its methods."""
    names = {name: row["search"] for name, row in papers()["reality_check"]["methods"].items() if "search" in row}
    return {
        title: {names[m]: s for m, s in table_scores(dataset, "map_at_r").items() if m in names}
        for dataset, title in PAPERS.items()
    }


def order_section(sets: Sequence[LaptopSet]) -> Section:
    """Kendall's tau of the orders here with those of the Reality Check, and with each other."""
    ours = {each.name: means(each.table(), each.methods) for each in sets}
    theirs = paper_orders()
    all_orders = {**ours, **theirs}
    rows = []
    for name in all_orders:
        rows.append(
            [
                name,
                *(
                    "" if other == name else said_tau(kendall(all_orders[name], all_orders[other]))
                    for other in all_orders
                ),
            ]
        )
    by_set = [[kendall(a, b).tau for b in theirs.values()] for a in ours.values()]
    with_paper = [tau for of_one in by_set for tau in of_one]
    among_ours = [kendall(a, b).tau for a, b in combinations(ours.values(), 2)]
    among_paper = [kendall(a, b).tau for a, b in combinations(theirs.values(), 2)]
    shown = sum(kendall(a, b).low > 0 for a in ours.values() for b in theirs.values())
    short = (
        f"Kendall's tau with the paper's tables is {fmean(with_paper):+.2f} on average ({min(with_paper):+.2f} to "
        f"{max(with_paper):+.2f}; above zero beyond its interval, uncorrected, for {shown} of {len(with_paper)}"
        f"{said_over_sets(by_set)}); its own three tables agree with each other by {fmean(among_paper):+.2f}"
        + (f", our sets by {fmean(among_ours):+.2f}." if among_ours else ".")
    )
    lines = [
        "Kendall's tau-b of the order of the 14 methods by test MAP@R (separated, batch 32), with its 95% interval "
        "(Fieller et al. 1957, good to 0.8 or so: of 14 methods taken for a sample of many).",
        "",
        *table(["", *all_orders], rows),
    ]
    return Section("Is it the Reality Check's order?", short, lines)


def said_over_sets(by_set: Sequence[Sequence[float]]) -> str:
    """`; +0.22 ± 0.27 over the sets`: with the interval of the sets' means."""
    each = [fmean(taus) for taus in by_set]
    half = t_interval(each)
    return "" if half is None else f"; {fmean(each):+.2f} ± {half:.2f} over the sets"


def foretell_section(sets: Sequence[LaptopSet]) -> Section:
    """Whether the order on the validation folds is that on the test classes."""
    rows, correlations = [], []
    for each in sets:
        methods, test = each.methods, means(each.table(), each.methods)
        trial = {m: max(t.value for t in each.trials[m] if t.value is not None) for m in methods}
        runs = means(each.table("run"), methods)
        best = max(runs, key=runs.__getitem__)
        found = [float(spearmanr([v[m] for m in methods], [test[m] for m in methods]).statistic) for v in (trial, runs)]
        correlations.append(found[0])
        lost = max(test.values()) - test[best]
        rows.append(
            [
                each.name,
                f"{found[0]:.2f}",
                f"{found[1]:.2f}",
                said_tau(kendall(runs, test)),
                f"`{best}`",
                f"{100 * lost:.1f}",
            ]
        )
    paper_methods = max(len(validation_against_test(dataset).validation) for dataset in DATASETS)
    for dataset in DATASETS:
        found = validation_against_test(dataset)
        lost = max(found.test.values()) - found.test[max(found.validation, key=found.validation.__getitem__)]
        tau = said_tau(kendall(found.validation, found.test))
        best = max(found.validation, key=found.validation.__getitem__)
        rows.append([f"paper: {PAPERS[dataset]}", f"{found.spearman:.2f}", "", tau, best, f"{100 * lost:.1f}"])
    short = (
        f"Spearman's correlation of the best trial's validation MAP@R with the test's is "
        f"{', '.join(f'{c:.2f} ({e.name})' for c, e in zip(correlations, sets, strict=True))}; the paper's are "
        f"{', '.join(f'{validation_against_test(d).spearman:.2f} ({PAPERS[d]})' for d in DATASETS)}."
    )
    lines = [
        f"Over the 14 methods, the paper's over the {paper_methods} whose trials of batch 32 are recorded. "
        "Its column is that of the best trial; the ten runs of the chosen setting have "
        "fresh "
        "seeds, so their validation scores are no maxima of noise. The last columns: the method with the best "
        "validation "
        "score (of its runs; the paper's, of its trials), and by how much its test MAP@R is below the best one's.",
        "",
        *table(
            [
                "",
                "Spearman, best trial",
                "Spearman, runs",
                "Kendall's tau, runs",
                "best on validation",
                "below the best on test",
            ],
            rows,
        ),
    ]
    return Section("Does the validation order foretell the test order?", short, lines)
