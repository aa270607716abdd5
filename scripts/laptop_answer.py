"""Writes docs/results/laptop/README.md: what the laptop studies say, every number from the CSV files beside it.

    python scripts/laptop_answer.py

Sets that are not there yet are left out, and the page says how many of the seven it rests on.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean, median

import numpy as np
from laptop_sets import (
    DEFAULTS,
    PCA,
    RESULTS,
    SETS,
    LaptopSet,
    Section,
    Settings,
    finished_sets,
    mean_with,
    scores_by_method,
    table,
)
from laptop_transfer import transfer_section
from scipy.stats import spearmanr

from levelfield.analysis.agreement import Agreement, kendall
from levelfield.analysis.comparison import PAIR, SECOND_SEARCH, Comparison
from levelfield.analysis.paper_figures import DATASETS, validation_against_test
from levelfield.analysis.ranks import rank_methods
from levelfield.analysis.search_noise import Searched, agreeing, argument_at_fault, outcome
from levelfield.analysis.statistics import LEVEL, holm, paired_comparison, t_interval, t_quantile
from levelfield.analysis.variance_components import COMPONENTS, variance_components
from levelfield.analysis.verdicts import points, turned
from levelfield.published.tables import claims, papers, reality_check_scores
from levelfield.report.figures.style import style, to_svg
from levelfield.report.ranks_figure import ranks_figure
from levelfield.storage.atomic import write_atomically
from levelfield.study.definition.spec import BASELINE, is_baseline

FEATURES, LDA = f"{BASELINE}[features]", f"{BASELINE}[lda]"
CLASSIC = ("contrastive", "triplet_margin")
PAPERS = {"cub200": "CUB", "cars196": "Cars", "sop": "SOP"}
TRIALS = (5, 10, 20, 30, 40, 50)
FINALS = (0, 3, 5, 10)
AGREE = 0.95
SIMULATED = 4000  # searches of each kind


def between(low: float, high: float) -> str:
    return f"{points(low)} to {points(high)}"


def means(scores: dict[str, np.ndarray], methods: Sequence[str]) -> dict[str, float]:
    return {method: float(scores[method].mean()) for method in methods}


# --- Scores -------------------------------------------------------------------------------------------------------


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
    classical = sum(alone[e.name][LDA].mean() > max(alone[e.name][m].mean() for m in methods) for e in sets)
    total = len(sets) * len(methods)
    short = (
        f"{len(lost)} of {total} searched losses end below the untrained trunk's PCA of the same length"
        f"{f' ({said_pairs(lost)})' if lost else ''}; with the four folds' embeddings side by side "
        f"{len(lost_together)} "
        f"of {total} end below the trunk's features as they are. LDA is above every loss on {classical} of {len(sets)}."
    )
    lines = [
        "MAP@R on the test classes, percent, separated (mean of the four folds' 128 numbers) / concatenated (their 512 "
        "side by side): means of ten runs ± half a 95% t-interval over them. Losses by their separated mean over the "
        "sets. `pretrained` is the untrained trunk reduced to 128 by a PCA; `features` and `pca512` are longer.",
        "",
        *table(["", *(each.name for each in sets)], rows),
        "",
        f"Below `{BASELINE}`, separated: {said_pairs(lost) or 'none'}.",
        "",
        f"Below `{FEATURES}`, concatenated: {said_pairs(lost_together) or 'none'}.",
    ]
    return Section("What do they score, and does training pay?", short, lines)


def said_mean(scores: np.ndarray) -> str:
    """`26.0 ± 0.2`: mean over runs with its interval, percent."""
    runs = scores.mean(axis=1).tolist()
    half = t_interval(runs)
    return f"{100 * fmean(runs):.1f}" + ("" if half is None else f" ± {100 * half:.1f}")


def said_pairs(pairs: Sequence[tuple[str, str]]) -> str:
    by_set: dict[str, list[str]] = {}
    for name, method in pairs:
        by_set.setdefault(name, []).append(f"`{method}`")
    return "; ".join(f"{name}: {', '.join(methods)}" for name, methods in by_set.items())


# --- Better than the classics -------------------------------------------------------------------------------------


def over(each: LaptopSet, classic: str) -> dict[str, Comparison]:
    """Each method's comparison with a classic loss, of the family of all pairs."""
    found = {}
    for comparison in each.comparisons:
        if comparison.kind == PAIR and classic in (comparison.method, comparison.other):
            right_way = turned(comparison) if comparison.method == classic else comparison
            found[right_way.method] = right_way
    return found


def better_section(sets: Sequence[LaptopSet]) -> Section:
    """Whether a loss is better than contrastive or triplet, by how much, on how many sets."""
    methods, n = sets[0].methods, len(sets)
    found = {classic: {each.name: over(each, classic) for each in sets} for classic in CLASSIC}
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
        largest = max((abs(c.difference) for c in second_searches(each)), default=0.0)
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
        "two searches differ by up to",
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
            f"The best of a set is above contrastive by {range_of([means(e.table(), methods) for e in sets])} "
            "points, on "
            f"{clear} of {n} by more than two searches of one loss differ."
        ]
    )
    return Section("Is any loss better than contrastive or triplet?", short, lines)


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


def second_searches(each: LaptopSet) -> list[Comparison]:
    return [c for c in each.comparisons if c.kind == SECOND_SEARCH]


# --- Ranks and agreement ------------------------------------------------------------------------------------------


def rank_section(sets: Sequence[LaptopSet], folder: Path) -> Section | None:
    if len(sets) < 2:
        return None
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
    return Section("Which ranks best over the sets?", short, lines)


def paper_orders() -> dict[str, dict[str, float]]:
    """The Reality Check's separated MAP@R of batch 32, by our names of its methods."""
    names = {name: row["search"] for name, row in papers()["reality_check"]["methods"].items() if "search" in row}
    return {
        title: {names[m]: s for m, s in reality_check_scores(dataset, "map_at_r").items() if m in names}
        for dataset, title in PAPERS.items()
    }


def said_tau(found: Agreement) -> str:
    return f"{found.tau:+.2f} ({found.low:+.2f} to {found.high:+.2f})"


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
    with_paper = [kendall(a, b).tau for a in ours.values() for b in theirs.values()]
    among_ours = [kendall(a, b).tau for a, b in combinations(ours.values(), 2)]
    among_paper = [kendall(a, b).tau for a, b in combinations(theirs.values(), 2)]
    shown = sum(kendall(a, b).low > 0 for a in ours.values() for b in theirs.values())
    short = (
        f"Kendall's tau with the paper's tables is {fmean(with_paper):+.2f} on average ({min(with_paper):+.2f} to "
        f"{max(with_paper):+.2f}; above zero beyond its interval for {shown} of {len(with_paper)}); its own three "
        "tables agree "
        f"with each other by {fmean(among_paper):+.2f}"
        + (f", our sets by {fmean(among_ours):+.2f}." if among_ours else ".")
    )
    lines = [
        "Kendall's tau-b of the order of the 14 methods by test MAP@R (separated, batch 32), with its 95% interval "
        "(Fieller "
        "et al. 1957: of 14 methods taken for a sample of many).",
        "",
        *table(["", *all_orders], rows),
    ]
    return Section("Is it the Reality Check's order?", short, lines)


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
        "Over the 14 methods. The paper's column is that of the best trial; the ten runs of the chosen setting have "
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


# --- Noise --------------------------------------------------------------------------------------------------------


def noise_section(sets: Sequence[LaptopSet]) -> Section:
    """Seeds, folds and searches beside what separates methods."""
    rows, pairs, largest, p1, unseen = [], [], [], [], []
    for each in sets:
        scores, methods = each.table(), each.methods
        seed = median(float(scores[m].mean(axis=1).std(ddof=1)) for m in methods)
        fold = median(float(scores[m].mean(axis=0).std(ddof=1)) for m in methods)
        found = second_searches(each)
        by_mean = sorted(means(scores, methods).values(), reverse=True)
        cells = [
            f"{points(c.difference)} ({'' if c.low is None or c.high is None else between(c.low, c.high)})"
            for c in found
        ]
        validated = means(each.table("run"), list(each.spec.methods))
        for c in found:
            gap = validated[c.method] - validated[c.other]
            unseen += [abs(c.difference - gap)]
            settings = (said_setting(each.chosen(name)) for name in (c.other, c.method))
            pairs.append([f"{each.name} `{c.other}`", points(gap), points(c.difference), *settings])
        largest += [abs(c.difference) for c in found]
        first = means(each.table(metric="precision_at_1"), list(each.spec.methods))
        p1 += [abs(first[c.method] - first[c.other]) for c in found]
        spread = [by_mean[0] - by_mean[1], by_mean[0] - by_mean[len(by_mean) // 2], by_mean[0] - by_mean[-1]]
        rows.append(
            [each.name, f"{100 * seed:.2f}", f"{100 * fold:.1f}", *cells, *(f"{100 * gap:.1f}" for gap in spread)]
        )
    named = [c.other for c in second_searches(sets[0])]
    short_of = (
        f"What separates two searches on the test classes differs by {100 * fmean(unseen):.1f} points on average from "
        "what separates them on the validation folds."
    )
    claimed = [step for dataset in DATASETS for step in claimed_steps(dataset) if step > 0]
    short = (
        f"Two searches of one loss differ by {100 * fmean(largest):.1f} points MAP@R on average and by up to "
        f"{100 * max(largest):.1f} ({len(largest)} pairs); in P@1 by {100 * fmean(p1):.1f} and {100 * max(p1):.1f}. "
        "Papers claim to be "
        f"above the best of earlier years by {100 * median(claimed):.1f} points of Recall@1 (median of "
        f"{len(claimed)} claims on CUB, Cars and SOP that are above). {short_of}"
    )
    lines = [
        "Points of test MAP@R. Seeds: standard deviation over runs of the mean over folds; folds: over folds of the "
        "mean "
        "over runs, both the median of the 14 methods. Searches: the second less the first, each ten runs, with its "
        "95% "
        "interval over the runs.",
        "",
        *table(
            [
                "",
                "seeds",
                "folds",
                *(f"`{name}`, two searches" for name in named),
                "best to second",
                "best to median",
                "best to worst",
            ],
            rows,
        ),
        "",
        "What the two searches found, and by how much the second is above the first on the validation folds (ten "
        "fresh runs, "
        "points of MAP@R) and on the test classes. Where the two columns differ, no number of trials would settle it: "
        "settings that the validation classes cannot tell apart are not equal on the test classes.",
        "",
        *table(["", "validation", "test", "first search", "second search"], pairs),
        "",
        "What papers claim, Recall@1 of Zhai and Wu's collection, each over the best claim of an earlier year, points: "
        + "; ".join(f"{PAPERS[d]} {', '.join(points(step) for step in claimed_steps(d))}" for d in DATASETS)
        + ".",
    ]
    return Section("How large is the noise of the search?", short, lines)


def said_setting(settings: Settings) -> str:
    return ", ".join(f"{key.rpartition('.')[2]} {value:.3g}" for key, value in settings.items())


def claimed_steps(dataset: str) -> list[float]:
    """By how much each paper claims to be above the best claim of an earlier year; the first year's have none."""
    found = claims(dataset)
    steps = []
    for claim in found:
        earlier = [other.recall_at_1 for other in found if other.year < claim.year]
        steps += [claim.recall_at_1 - max(earlier)] if earlier else []
    return steps


def components_section(sets: Sequence[LaptopSet]) -> Section:
    """Variance components of the methods that were searched twice."""
    rows, found = [], []
    for each in sets:
        twice = [m for m in each.methods if len(each.searches_of(m)) == 2]
        scores = np.array([[each.runs(name) for name in each.searches_of(m)] for m in twice])
        one = variance_components(scores)
        found.append(one)
        rows.append(
            [
                each.name,
                *(f"{100 * one.sd[k]:.2f} ({100 * one.low[k]:.2f} to {100 * one.high[k]:.2f})" for k in COMPONENTS),
            ]
        )
    middle = {k: median(one.sd[k] for one in found) for k in COMPONENTS}
    larger = sum(one.sd["search"] > one.sd["seed"] for one in found)
    short = (
        f"The search's standard deviation is {100 * middle['search']:.2f} points, a seed's "
        f"{100 * middle['seed']:.2f}, a fold's "
        f"{100 * middle['fold']:.1f} (medians over the sets); the search's is the larger "
        f"of the first two on {larger} of "
        f"{len(sets)}. What a fold does to all methods cancels in their differences; "
        f"{100 * middle['fold x setting']:.2f} of it does not."
    )
    lines = [
        "Standard deviations in points of test MAP@R with 95% intervals, of a linear mixed model of the three losses "
        "that "
        "were searched twice: score = loss + search + seed (on all folds) + fold + fold x setting + residual. The "
        "design is "
        "balanced, so the estimates are those of restricted maximum likelihood (a test compares them with "
        "statsmodels'). "
        "Three pairs of searches say little of the first column: see its intervals.",
        "",
        *table(["", *COMPONENTS], rows),
    ]
    return Section("What does the variance consist of?", short, lines)


# --- The search ---------------------------------------------------------------------------------------------------


def search_section(sets: Sequence[LaptopSet], simulated: int) -> Section:
    """How many trials until two searches agree, which argument is at fault, and whether a second look helps."""
    rows, outcomes, unsettled, settled = [], [], [], []
    for each in sets:
        for method in each.methods:
            surface, noise = each.surfaces[method], each.noise(method)
            tried = [t for name in each.searches_of(method) for t in each.trials[name] if t.value is not None]
            settings = [t.settings for t in tried]
            searched = Searched(f"{each.name} {method}", surface(settings), noise)
            runs = each.table("run")[method].shape[0]
            within = t_quantile(2 * runs - 2) * noise * (2 / runs) ** 0.5
            shares = [agreeing(searched, k, within, simulated) for k in TRIALS]
            last_share, pairs, agree = shares[-1]
            fault = ""
            if last_share < AGREE:
                first, second = ([settings[i] for i in side[~agree][:200]] for side in pairs)
                changes = argument_at_fault(surface, first, second)
                key = next(iter(changes))
                fault = f"{key.rpartition('.')[2]} ({100 * changes[key]:.2f})"
                unsettled.append(f"`{method}` on {each.name} ({key.rpartition('.')[2]})")
            else:
                settled.append(method)
            enough = next(
                (str(k) for k, (share, _, _) in zip(TRIALS, shares, strict=True) if share >= AGREE), f"> {TRIALS[-1]}"
            )
            outcomes.append([outcome(searched, TRIALS[-1], final, simulated) for final in FINALS])
            rows.append(
                [
                    f"{each.name} `{method}`",
                    f"{100 * within:.2f}",
                    *(f"{100 * share:.0f}" for share, _, _ in shares),
                    enough,
                    fault,
                ]
                + [f"{100 * gap:.2f} / {100 * lost:.2f}" for gap, lost in outcomes[-1]]
            )
    averages = np.mean(outcomes, axis=0)
    plain, *looks = averages[:, 0]
    best = int(np.argmin(looks))
    gain = 1 - looks[best] / plain if plain else 0.0
    total = len(settled) + len(unsettled)
    short = (
        f"After {TRIALS[-1]} trials two searches agree within what ten seeds leave open in {AGREE:.0%} of cases for "
        f"{len(settled)} of "
        f"{total} losses and sets. "
        + f"Training the {FINALS[1 + best]} best trials again before one is chosen makes two searches differ by "
        f"{100 * looks[best]:.2f} instead of {100 * plain:.2f} points at the same cost ({-gain:+.0%})."
    )
    lines = [
        "Simulated searches draw N of the recorded trials (of both searches where there were two), see them with the "
        "noise "
        "of a seed, and choose the best; true scores are what a Gaussian process makes of the trials, the noise is "
        "that of the "
        "runs' validation scores. Two of them agree where their settings' true scores differ by no more than the 95% "
        "interval "
        "of the difference of two means of ten runs (`within`, points). Shares of agreement after N trials, percent; "
        "the number at "
        f"which {AGREE:.0%} agree; for those that {TRIALS[-1]} do not settle, the argument whose exchange between "
        "the two settings changes the "
        "score most (mean change, points). Last: by how much two searches of 50 trainings differ / are below the best "
        "trial, points, choosing plainly and after training the 3, 5 or 10 best again. The trials of a real search "
        "crowd where "
        "scores are high, so that draws from them agree sooner than searches from nothing.",
        "",
        *table(
            [
                "",
                "within",
                *map(str, TRIALS),
                "enough",
                "at fault",
                *(f"best {f} again" if f else "plain" for f in FINALS),
            ],
            rows,
        ),
        "",
        "Means: "
        + "; ".join(
            f"{f'best {f} again' if f else 'plain'} {100 * gap:.2f} / {100 * lost:.2f}"
            for f, (gap, lost) in zip(FINALS, averages, strict=True)
        )
        + ".",
    ]
    return Section("How many trials until two searches agree, and does a second look help?", short, lines)


# --- Follow-up studies --------------------------------------------------------------------------------------------


def paired_section(
    sets: Sequence[LaptopSet], kind: str, question: str, said_as: Callable[[list[str]], str], sign: int, note: str
) -> Section:
    """A method's chosen setting against the same method in a follow-up study, run by run.

    Args:
        sign: 1 where the follow-up's score counts, -1 where the chosen setting's does.
    """
    there = [each for each in sets if each.follow_up(kind) is not None]
    if not there:
        command = f"`python scripts/laptop_followups.py {sets[0].name}` writes the study and says the command"
        return Section(question, f"Not run yet: {command}.", [])
    methods, rows, overall = there[0].methods, {m: [f"`{m}`"] for m in there[0].methods}, {}
    below = []
    for each in there:
        other, own = scores_by_method(each.follow_up(kind) or [], "test"), each.table()
        compared = []
        for method in methods:
            runs = min(len(other[method]), len(own[method]))  # of the same seeds
            compared.append(paired_comparison(sign * other[method][:runs], sign * own[method][:runs]))
            if other[method].mean() < own["pretrained"].mean():
                below.append((each.name, method))
        adjusted = holm(np.array([float(c.p) for c in compared]))
        overall[each.name] = [float(c.difference) for c in compared]
        for method, c, p in zip(methods, compared, adjusted, strict=True):
            rows[method].append(
                f"{points(float(c.difference))} ({between(float(c.low), float(c.high))}){' *' if p < LEVEL else ''}"
            )
    averages = [f"{mean_with(values)} ({name})" for name, values in overall.items()]
    lines = [
        note
        + " Differences in test MAP@R, points, with 95% intervals over the runs of the same seeds; * shown at 5% among "
        "the 14 of a set (Holm).",
        "",
        *table(["", *(each.name for each in there)], list(rows.values())),
        "",
        f"Below the untrained trunk's PCA: {said_pairs(below) or 'none'}.",
    ]
    return Section(
        question, said_as(averages) + f" Below the untrained PCA: {len(below)} of {len(there) * len(methods)}.", lines
    )


def follow_up_sections(sets: Sequence[LaptopSet]) -> list[Section]:
    return [
        paired_section(
            sets,
            DEFAULTS,
            "What do tuned settings win over the defaults?",
            lambda said: f"Mean of the 14 methods with its interval over them, points: {'; '.join(said)}.",
            -1,
            "The chosen setting less that of the method's file under `configs/method`, which suits fine-tuning.",
        ),
        paired_section(
            sets,
            PCA,
            "Does it pay to start at the baseline's PCA?",
            lambda said: (
                f"With `--model.embedder_init pca` less without, mean of the 14 methods, points: {'; '.join(said)}."
            ),
            1,
            "Each loss at its chosen setting, which was searched without it; epoch 0 is among the checkpoints to "
            "choose "
            "from.",
        ),
    ]


# --- The page -----------------------------------------------------------------------------------------------------


def page(sets: Sequence[LaptopSet], folder: Path, simulated: int = SIMULATED) -> str:
    """The page; its figure is written into `folder`."""
    sections = [
        score_section(sets),
        better_section(sets),
        rank_section(sets, folder),
        order_section(sets),
        noise_section(sets),
        components_section(sets),
        foretell_section(sets),
        search_section(sets, simulated),
        transfer_section(sets),
        *follow_up_sections(sets),
    ]
    known = [section for section in sections if section is not None]
    names = ", ".join(f"[{each.name}]({each.name}/index.html)" for each in sets)
    missing = [name for name in SETS if name not in {each.name for each in sets}]
    lines = [
        "# The Reality Check on a laptop",
        "",
        f"14 losses, each searched with 50 trials and run ten times on four folds, on a frozen pretrained trunk: "
        f"**{len(sets)} of {len(SETS)} sets** are in ({names})"
        + (f"; {', '.join(missing)} are not yet, and nothing here speaks of them." if missing else "."),
        "",
        "Written by `python scripts/laptop_answer.py` from the CSV files of the folders beside this page; whoever "
        "adds a set "
        "runs it again. An interval over runs says what other seeds would give; one over sets, what other sets might.",
        "",
        "## In short",
        "",
        *(f"- **{section.question}** {section.short}" for section in known),
    ]
    for section in known:
        if section.lines:
            lines += ["", f"## {section.question}", "", section.short, "", *section.lines]
    return "\n".join([*lines, "", *ORIGIN, ""])


ORIGIN = [
    "## What lies here",
    "",
    "A folder a set: `results.csv` (every score), `summary.csv`, `trials.csv` (what each trial tried), "
    "`ledger.jsonl` (the "
    "openings of the test classes), the study's page with its figures, and `study.tar.xz`, its definition and all "
    "results: "
    "`levelfield study verify docs/results/laptop/SET/study.tar.xz` computes the tables again, and",
    "",
    "    levelfield study run laptop/SET --data.root DIR --from docs/results/laptop/SET/study.tar.xz \\",
    '      --add-method my_loss.MyLoss --reopen-test "my loss" --mixed-versions',
    "",
    "puts another loss beside them.",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder with a folder a set")
    folder = parser.parse_args().results
    sets = finished_sets(folder)
    if not sets:
        raise SystemExit(
            f"{folder} holds no finished set; collect one: python scripts/laptop_results.py outputs/laptop/NAME"
        )
    write_atomically(folder / "README.md", page(sets, folder).encode())
    print(f"{folder / 'README.md'}: {len(sets)} of {len(SETS)} sets")


if __name__ == "__main__":
    main()
