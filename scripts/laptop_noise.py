"""How large the noise of seeds, folds and searches is on the laptop sets, and what a search would need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product
from math import floor, pi
from statistics import fmean, median

import numpy as np
from laptop_order import PAPERS
from laptop_sets import LaptopSet, Settings
from laptop_words import Section, between, mean_with, means, table

from levelfield.analysis.search_noise import Searched, agreeing, argument_at_fault, outcome
from levelfield.analysis.statistics import t_quantile
from levelfield.analysis.variance_components import COMPONENTS, variance_components
from levelfield.analysis.verdicts import points
from papers.drawing import DATASETS
from papers.published import claims

TRIALS = (5, 10, 20, 30, 40, 50)
FINALS = (0, 3, 5, 10)
AGREE = 0.95
RUNS = 10
MIXED = 200  # pairs of settings whose arguments are exchanged
NAMED = 5  # arguments at fault that the first paragraph names


def noise_section(sets: Sequence[LaptopSet]) -> Section:
    """Seeds, folds and searches beside what separates methods."""
    rows, pairs, largest, p1, unseen, by_seeds, apart = [], [], [], [], [], [], 0
    for each in sets:
        scores, methods = each.table(), each.methods
        seed = median(float(scores[m].mean(axis=1).std(ddof=1)) for m in methods)
        fold = median(float(scores[m].mean(axis=0).std(ddof=1)) for m in methods)
        found = each.second_searches
        by_mean = sorted(means(scores, methods).values(), reverse=True)
        cells = [
            f"{points(c.difference)} ({'' if c.low is None or c.high is None else between(c.low, c.high)})"
            for c in found
        ]
        validated = means(each.table("run"), list(each.spec.methods))
        for c in found:
            gap = validated[c.method] - validated[c.other]
            unseen += [abs(c.difference - gap)]
            apart += differ_beyond_seeds(each, c.method, c.other)
            by_seeds += [expected_gap(scores[c.method], scores[c.other])]
            settings = (said_setting(each.chosen(name)) for name in (c.other, c.method))
            pairs.append([f"{each.name} `{c.other}`", points(gap), points(c.difference), *settings])
        largest += [abs(c.difference) for c in found]
        first = means(each.table(metric="precision_at_1"), list(each.spec.methods))
        p1 += [abs(first[c.method] - first[c.other]) for c in found]
        spread = [by_mean[0] - by_mean[1], by_mean[0] - median(by_mean), by_mean[0] - by_mean[-1]]
        rows.append(
            [each.name, f"{100 * seed:.2f}", f"{100 * fold:.1f}", *cells, *(f"{100 * gap:.1f}" for gap in spread)]
        )
    named = [c.other for c in sets[0].second_searches]
    short_of = (
        f"What separates two searches on the test classes differs by {100 * fmean(unseen):.1f} points on average from "
        f"what separates them on the validation folds, for {apart} of {len(unseen)} by more than seeds explain."
    )
    claimed = [step for dataset in DATASETS for step in claimed_steps(dataset) if step > 0]
    short = (
        f"Two searches of one loss differ by {mean_with(largest, signed=False)} points MAP@R (mean of {len(largest)} "
        f"pairs with its 95% interval; median {100 * median(largest):.2f}, of which seeds alone would make "
        f"{100 * median(by_seeds):.2f}) and by up to {100 * max(largest):.1f}; in P@1 by {mean_with(p1, signed=False)} "
        f"and {100 * max(p1):.1f}. Papers claim to be "
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
        "fresh runs, points of MAP@R) and on the test classes, whose scale is another. Where the two columns differ by "
        f"more than seeds explain ({apart} of {len(unseen)}: a t-test of the runs at 5%, uncorrected), no number of "
        "trials would settle it: settings that the validation classes cannot tell apart are not equal on the test "
        "classes.",
        "",
        *table(["", "validation", "test", "first search", "second search"], pairs),
        "",
        "What papers claim, Recall@1 of Zhai and Wu's collection, each over the best claim of an earlier year, points: "
        + "; ".join(f"{PAPERS[d]} {', '.join(points(step) for step in claimed_steps(d))}" for d in DATASETS)
        + ".",
    ]
    return Section("How large is the noise of the search?", short, lines)


def expected_gap(first: np.ndarray, second: np.ndarray) -> float:
    """Mean distance of the means over runs of two equal settings, by the deviation of the runs of both, a fraction."""
    variance = sum(float(scores.mean(axis=1).var(ddof=1)) / len(scores) for scores in (first, second))
    return (2 / pi * variance) ** 0.5


def differ_beyond_seeds(each: LaptopSet, second: str, first: str) -> bool:
    """Whether the gap of two searches on the test classes is shown to be another than on the validation folds."""
    tested, validated = each.table(), each.table("run")
    rises = [tested[name].mean(axis=1) - validated[name].mean(axis=1) for name in (second, first)]
    error = sum(float(rise.var(ddof=1)) / len(rise) for rise in rises) ** 0.5
    quantile = t_quantile(sum(map(len, rises)) - 2)
    return abs(float(rises[0].mean() - rises[1].mean())) > quantile * error


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
        searches = [each.searches_of(method) for method in each.methods if twice(each, method)]
        scores = np.array([[each.runs(name) for name in names] for names in searches])
        one = variance_components(scores)
        found.append(one)
        rows.append(
            [
                each.name,
                *(f"{100 * one.sd[k]:.2f} ({100 * one.low[k]:.2f} to {100 * one.high[k]:.2f})" for k in COMPONENTS),
            ]
        )
    middle = {k: median(one.sd[k] for one in found) for k in COMPONENTS}
    of_run = [
        (one.sd["seed"] ** 2 + one.sd["residual"] ** 2 / each.spec.folds) ** 0.5
        for one, each in zip(found, sets, strict=True)
    ]
    above = [sum(one.sd["search"] > run / n**0.5 for one, run in zip(found, of_run, strict=True)) for n in (1, RUNS)]
    short = (
        f"The search's standard deviation is {100 * middle['search']:.2f} points; that of a run, the mean of its "
        f"folds, is {100 * median(of_run):.2f} ({100 * middle['seed']:.2f} of it alike on all of its folds), and a "
        f"fold's {100 * middle['fold']:.2f} (medians over the sets). The search's is above a run's on {above[0]} of "
        f"{len(sets)}, above that of a mean of {RUNS} runs on {above[1]}. What a fold does to all methods cancels in "
        f"their differences; what it does to one, {100 * middle['fold x setting']:.2f} points, does not."
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


def search_section(sets: Sequence[LaptopSet], simulated: int) -> Section:
    """How many trials until two searches agree, which argument is at fault, and whether a second look helps."""
    rows, outcomes, settled, faults = [], [], 0, []
    for each, method in product(sets, sets[0].methods):
        settings = [t.settings for name in each.searches_of(method) for t in each.trials[name] if t.value is not None]
        searched = Searched(method, each.surfaces[method](settings), each.noise(method))
        shares = [agreeing(searched, trials, within(each, method), simulated) for trials in TRIALS]
        fault, (last, pairs, agree) = "", shares[-1]
        settled += last >= AGREE
        if last < AGREE:
            first, second = ([settings[i] for i in side[~agree][:MIXED]] for side in pairs)
            key, change = next(iter(argument_at_fault(each.surfaces[method], first, second).items()))
            fault = f"{key.rpartition('.')[2]} ({100 * change:.2f})"
            faults.append(f"{method}'s {key.rpartition('.')[2]}")
        enough = (str(trials) for trials, (share, _, _) in zip(TRIALS, shares, strict=True) if share >= AGREE)
        percents = (f"{floor(100 * share)}" for share, _, _ in shares)  # one short of enough does not read as enough
        head = [f"{each.name} `{method}`", f"{100 * within(each, method):.2f}"]
        rows.append([*head, *percents, next(enough, f"> {TRIALS[-1]}"), fault])
        outcomes.append([outcome(searched, TRIALS[-1], final, simulated) for final in FINALS])
    gaps = np.mean(outcomes, axis=0)
    real = [float(row[-1]) for row in in_order(sets)]
    alike = [outcomes[i][0][0] for i, (each, m) in enumerate(product(sets, sets[0].methods)) if twice(each, m)]
    best = 1 + int(np.argmin(gaps[1:, 0]))
    blamed = f"; at fault in the others {counted(faults)}" if faults else ""
    short = (
        f"After {TRIALS[-1]} trials two simulated searches agree within what ten seeds leave open in {AGREE:.0%} of "
        f"cases for {settled} of {len(rows)} losses and sets{blamed}. Training the {FINALS[best]} best trials again "
        f"before one is chosen makes two searches differ by {100 * gaps[best, 0]:.2f} instead of "
        f"{100 * gaps[0, 0]:.2f} points at the same cost ({gaps[best, 0] / gaps[0, 0] - 1:+.0%})."
    )
    looks = [
        f"the best {final} of {TRIALS[-1] - final} again" if final else f"best of {TRIALS[-1]}" for final in FINALS
    ]
    lines = [
        "Simulated searches draw N of the recorded trials (of both searches where there were two), see them with the "
        "noise of a seed, and choose the best; true scores are what a Gaussian process makes of the trials, the noise "
        "is that of the runs' validation scores. Two of them agree where the true validation scores of their settings "
        "differ by no more than the 95% interval of the difference of two means of ten runs (`within`, points). Shares "
        f"of agreement after N trials, percent, and the N at which {AGREE:.0%} agree; for those that {TRIALS[-1]} do "
        "not settle, the argument whose exchange between the two settings changes the score most (mean change, "
        "points). The trials of a real search crowd where scores are high, so that draws from them agree sooner than "
        f"searches from nothing: for the losses that were searched twice, simulated searches differ by "
        f"{100 * fmean(alike):.2f} points on average, the ten runs of the real ones by {fmean(real):.2f}, of which "
        "seeds make a part.",
        "",
        *table(["", "within", *map(str, TRIALS), "enough", "at fault"], rows),
        "",
        "The two real searches of three losses, in the order of their trials: by how much the true validation scores "
        "of the best settings so far differ, points; last, by how much their ten runs differed. At the chosen settings "
        f"the Gaussian process is {100 * surface_error(sets):.2f} points off the mean of ten runs on average.",
        "",
        *table(["", "within", *(f"after {trials}" for trials in TRIALS), "ten runs"], in_order(sets)),
        "",
        "Successive re-ranking, at the same number of trainings, means over the losses and sets, points:",
        "",
        *table(
            ["", "two searches differ by", "below the best trial"],
            [[look, *(f"{100 * value:.2f}" for value in both)] for look, both in zip(looks, gaps, strict=True)],
        ),
    ]
    return Section("How many trials until two searches agree, and does a second look help?", short, lines)


def twice(each: LaptopSet, method: str) -> bool:
    return len(each.searches_of(method)) == 2


def counted(faults: Sequence[str]) -> str:
    """`arcface's margin (2), cosface's margin`: the most frequent, and how many of others."""
    counts = Counter(faults).most_common()
    named = [f"{fault} ({count})" if count > 1 else fault for fault, count in counts[:NAMED]]
    return ", ".join([*named, *[f"{len(counts) - NAMED} other arguments of a loss"] * (len(counts) > NAMED)])


def within(each: LaptopSet, method: str) -> float:
    """Half the 95% interval of the difference of two means over runs of one setting's validation MAP@R."""
    runs = len(each.table("run")[method])
    return t_quantile(2 * runs - 2) * each.noise(method) * (2 / runs) ** 0.5


def in_order(sets: Sequence[LaptopSet]) -> list[list[str]]:
    """A row a method with two searches: difference of their best settings so far, by the surface of both."""
    rows = []
    for each in sets:
        for method in (method for method in each.methods if twice(each, method)):
            cells = [f"{each.name} `{method}`", f"{100 * within(each, method):.2f}"]
            for trials in TRIALS:
                best = [
                    max((t for t in each.trials[name][:trials] if t.value is not None), key=lambda tried: tried.value)
                    for name in each.searches_of(method)
                ]
                first, second = each.surfaces[method]([tried.settings for tried in best])
                cells.append(f"{100 * abs(first - second):.2f}")
            one, other = (each.table("run")[name].mean() for name in each.searches_of(method))
            rows.append([*cells, f"{100 * abs(one - other):.2f}"])
    return rows


def surface_error(sets: Sequence[LaptopSet]) -> float:
    """Mean distance of a surface at the chosen settings from what their runs scored, a fraction."""
    return fmean(
        abs(float(each.surfaces[method]([each.chosen(name)])[0]) - float(each.table("run")[name].mean()))
        for each in sets
        for method in each.methods
        for name in each.searches_of(method)
    )
