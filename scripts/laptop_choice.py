"""The page that answers "which loss should I try", docs/which_loss.md, from the finished laptop sets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from statistics import fmean

from laptop_gallery import TITLES
from laptop_later import later_choice
from laptop_limits import limits
from laptop_order import FEATURES, LDA, pair, range_of
from laptop_sets import LaptopSet
from laptop_variants import follow_up_sections
from laptop_words import mean_with, means, table

from levelfield.analysis.ranks import rank_methods
from levelfield.study.spec import BASELINE, first_search

UNTRAINED = (FEATURES, BASELINE, LDA)
SHORT = 5  # trials of a short search: the Sobol points that each search begins with


def choice_page(sets: Sequence[LaptopSet]) -> str:
    """The page."""
    return "\n".join(
        [
            "# Which loss should I try?",
            "",
            limits(sets, "results/"),
            "",
            "On your own data, run `levelfield compare my_images.csv`. Below is what the "
            f"[studies on a laptop](results/laptop/README.md) found. {how_few(sets)}",
            "",
            "Written by `python scripts/laptop_answer.py` from the CSV files in `docs/results/laptop`.",
            "",
            *training_pays(sets),
            "",
            *by_loss(sets),
            "",
            *later_choice(sets),
            *pca_start(sets),
            *search_matters(sets),
            "",
            *LIMITATIONS,
            "",
        ]
    )


def how_few(sets: Sequence[LaptopSet]) -> str:
    """How much sets of this number can say of losses in general."""
    n = len(sets)
    if n < 2:
        return "**One set says nothing of another.**"
    ranks = rank_methods({each.name: means(each.table(), each.methods) for each in sets})
    order = ranks.mean_ranks
    pairs = list(combinations(order, 2))
    apart = sum(abs(order[a] - order[b]) >= ranks.critical_difference for a, b in pairs)
    return (
        f"**{n} sets are few**: over them the mean ranks of two losses must differ by {ranks.critical_difference:.1f} "
        f"of {len(order) - 1} to be told apart, which {apart} of {len(pairs)} pairs do. What is shown on a set is "
        "shown for other seeds, not for other data."
    )


def training_pays(sets: Sequence[LaptopSet]) -> list[str]:
    """How many losses are above each row that needs no gradient, and by how much the best loss is above all three."""
    rows, above_all = [], []
    for each in sets:
        scores = {name: float(runs.mean()) for name, runs in each.table().items()}
        untrained = max(scores[row] for row in UNTRAINED)
        best = max(each.methods, key=scores.__getitem__)
        above_all.append(sum(scores[method] > untrained for method in each.methods))
        cells = [f"{100 * scores[row]:.1f}" for row in UNTRAINED]
        rows.append([TITLES[each.name], *cells, f"{above_all[-1]} of {len(each.methods)}", f"`{best}`"])
        rows[-1].append(f"{100 * (scores[best] - untrained):+.1f}")
    total = sum(len(each.methods) for each in sets)
    return [
        "## Untrained features",
        "",
        "Look at the untrained features before you choose a loss: as they are, reduced by a PCA, or projected by a "
        "linear discriminant analysis (LDA) of the training classes. Each takes seconds and has no setting to search. "
        f"{sum(above_all)} of {total} searched losses end above all three. MAP@R on unseen classes, percent, on a "
        "frozen trunk. Losses and PCA have 128 numbers, the LDA one fewer than training classes (at most 128), the "
        "features as they are 1,280 or 384:",
        "",
        *table(
            ["", "features as they are", "PCA", "LDA", "losses above all", "best loss", "above all by, points"],
            rows,
        ),
    ]


def by_loss(sets: Sequence[LaptopSet]) -> list[str]:
    """How far each loss is behind the best of each set, and what a short search costs it."""
    methods = sets[0].methods
    scores = {each.name: means(each.table(), methods) for each in sets}
    best = {name: max(found, key=found.__getitem__) for name, found in scores.items()}
    behind = {m: [scores[e.name][best[e.name]] - scores[e.name][m] for e in sets] for m in methods}
    level = {m: [m == best[e.name] or not pair(e, best[e.name], m).shown for e in sets] for m in methods}
    order = sorted(methods, key=lambda m: fmean(behind[m]))
    rows = []
    for method in order:
        cells = [
            f"{100 * gap:.1f}{' =' if same else ''}" for gap, same in zip(behind[method], level[method], strict=True)
        ]
        short = [short_search(each, method) for each in sets]
        rows.append([f"`{method}`", *cells, mean_with(behind[method], signed=False)])
        rows[-1].append(mean_with(short, signed=False))
    always = [m for m in order if all(level[m])]
    sometimes = [m for m in order if any(level[m]) and m not in always]
    never = [m for m in order if not any(level[m])]
    every = f"on all {len(sets)} sets" if len(sets) > 1 else f"on {TITLES[sets[0].name]}"
    said = [f"Level with the best {every}, as far as ten runs show: {named(always)}."]
    if len(sets) > 1:
        said.append(f"On some: {named(sometimes)}.")
    said.append(f"Behind it {every}: {named(never)}.")
    if len(sets) > 1:
        safest = min(methods, key=lambda m: max(behind[m]))
        said.append(f"Never far behind: `{safest}`, by {100 * max(behind[safest]):.1f} points on its worst set.")
    return [
        "## How far each loss is behind the best",
        "",
        " ".join(said),
        "",
        "Points of test MAP@R behind the best loss of the set (`=`: no difference from it shown, paired over ten runs, "
        "Holm's correction over all 91 pairs), their mean over the sets; and by how many points of validation MAP@R "
        f"the best of a search's first {SHORT} trials is behind the best of its 50, the price of a short search:",
        "",
        *table(["", *(TITLES[each.name] for each in sets), "mean", f"{SHORT} trials"], rows),
        "",
        "`configs/method/NAME.yaml` is what `fit` takes of each; what it computes and when it is meant for is in "
        "[Losses and miners](losses.md).",
    ]


def named(methods: Sequence[str]) -> str:
    return ", ".join(f"`{method}`" for method in methods) or "none"


def short_search(each: LaptopSet, method: str) -> float:
    """The best validation MAP@R of all trials less that of the first few."""
    values = [(trial.number, trial.value) for trial in each.trials[method] if trial.value is not None]
    return max(value for _, value in values) - max(value for number, value in values if number < SHORT)


def pca_start(sets: Sequence[LaptopSet]) -> list[str]:
    """What the first weights of the layer are worth, where that was tried."""
    section = next(each for each in follow_up_sections(sets) if "PCA" in each.question)
    if not section.lines:
        return []
    return ["## From the PCA on", "", section.short, ""]


def search_matters(sets: Sequence[LaptopSet]) -> list[str]:
    """By how much two searches of one loss differ."""
    rows = [[TITLES[each.name], *(f"{100 * abs(c.difference):.1f}" for c in each.second_searches)] for each in sets]
    searched_twice = [f"`{first_search(c.method)}`" for c in sets[0].second_searches]
    largest = max((abs(c.difference) for each in sets for c in each.second_searches), default=0.0)
    return [
        "## How far to trust it",
        "",
        f"The best loss is above `contrastive` by {range_of([means(each.table(), each.methods) for each in sets])} "
        f"points. Two searches of one and the same loss, of 50 trials each, differ by up to {100 * largest:.1f}, so "
        "that a lead of that size may be the search's own. Differences between two searches, points of test MAP@R:",
        "",
        *table(["", *searched_twice], rows),
    ]


LIMITATIONS = [
    "## Limitations",
    "",
    "- The trunk was frozen. Training it brings more than the choice of a loss does here, and [another order]("
    "results/laptop/README.md#does-the-frozen-order-foretell-the-fine-tuned-one) may hold.",
    "- Losses that these pages do not name were not searched.",
    "- There is no advice by kind of loss. On Grocery Store, Banking77 and CLINC150 losses with class weights are "
    "ahead of pair losses from random weights, and behind them from a PCA.",
]
