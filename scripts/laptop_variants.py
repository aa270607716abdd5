"""The laptop studies beside others of the same sets: defaults, starts at the PCA, trunks that train too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from laptop_sets import DEFAULTS, PCA, LaptopSet, read_results, scores_by_method
from laptop_words import Section, between, mean_with, means, said_mean, said_pairs, said_tau, table

from levelfield.analysis.agreement import kendall
from levelfield.analysis.comparison import PAIR, compare_all
from levelfield.analysis.statistics import LEVEL, holm, paired_comparison, t_interval
from levelfield.analysis.verdicts import points
from levelfield.study.spec import BASELINE, is_baseline


def paired_section(
    sets: Sequence[LaptopSet],
    kind: str,
    question: str,
    said_as: Callable[[str], str],
    sign: int,
    note: str,
    place: str,
) -> Section:
    """A method's chosen setting against the same method in a follow-up study, run by run.

    Args:
        sign: 1 where the follow-up's score counts, -1 where the chosen setting's does.
        place: How the follow-up's methods are spoken of.
    """
    done = [each for each in sets if each.follow_up(kind) is not None]
    if not done:
        command = f"`python scripts/laptop_followups.py {sets[0].name}` writes the study and says the command"
        return Section(question, f"Not run yet: {command}.", [])
    methods, rows, overall = done[0].methods, {m: [f"`{m}`"] for m in done[0].methods}, {}
    below, before, shown, heads = [], [], [0, 0], []
    for each in done:
        other, own = scores_by_method(each.follow_up(kind) or [], "test"), each.table()
        compared = []
        runs = min(len(other[method]) for method in methods)
        for method in methods:
            there, here = other[method], own[method][:runs]  # of the same seeds
            compared.append(paired_comparison(sign * there, sign * here))
            for lower, scores in ((below, there), (before, here)):
                if scores.mean() < own[BASELINE].mean():
                    lower.append((each.name, method))
        heads.append(f"{each.name} ({runs} runs)")
        adjusted = holm(np.array([float(c.p) for c in compared]))
        of_run = [sign * (other[method] - own[method][:runs]).mean(axis=1) for method in methods]
        overall[each.name] = np.mean(of_run, axis=0).tolist()
        for method, c, p in zip(methods, compared, adjusted, strict=True):
            star = " *" if p < LEVEL else ""
            interval = f"({between(float(c.low), float(c.high))})"
            rows[method].append(f"{100 * other[method].mean():.1f}: {points(float(c.difference))} {interval}{star}")
            shown[int(c.difference < 0)] += p < LEVEL
    averages = "; ".join(f"{name} {mean_with(values)}" for name, values in overall.items())
    if len(done) > 1:
        over_sets = mean_with([float(np.mean(values)) for values in overall.values()])
        averages = f"{over_sets} over {len(done)} sets with the interval over them ({averages}, over the runs)"
        averages += f"; beyond its interval a gain on {', '.join(where(overall, 1)) or 'none'}, a loss on "
        averages += ", ".join(where(overall, -1)) or "none"
    lines = [
        note
        + " Test MAP@R of the other study, percent, and the difference, points, with its 95% interval over the runs of "
        "the same seeds; * shown at 5% among the 14 of a set (Holm).",
        "",
        *table(["", *heads], list(rows.values())),
        "",
        f"Below the untrained trunk's PCA {place}: {said_pairs(below) or 'none'}.",
    ]
    total = len(done) * len(methods)
    short = (
        f"{said_as(averages)} Of {total} pairs of method and set {shown[0]} are shown to gain, {shown[1]} to lose. "
        f"{len(below)} of {total} end below the untrained trunk's PCA {place}, {len(before)} at the chosen settings "
        "as searched (the same runs)."
    )
    low = [each.name for each in done if 2 * sum(name == each.name for name, _ in before) > len(methods)]
    if kind == PCA and len(done) > 1:
        gains = where(overall, 1)
        short += (
            f" Of the {len(low)} sets on which most of them end below that PCA as searched, it is a gain on "
            f"{len([name for name in low if name in gains])}; of the other {len(done) - len(low)} on "
            f"{len([name for name in gains if name not in low])}."
        )
    return Section(question, short, lines)


def where(overall: dict[str, list[float]], sign: int) -> list[str]:
    """The sets whose runs differ by more than their 95% interval, up or down."""
    return [name for name, runs in overall.items() if sign * float(np.mean(runs)) > (t_interval(runs) or 0.0)]


def follow_up_sections(sets: Sequence[LaptopSet]) -> list[Section]:
    return [
        paired_section(
            sets,
            DEFAULTS,
            "What do tuned settings win over the defaults?",
            lambda said: f"Mean of the 14 methods, points: {said}.",
            -1,
            "The chosen setting less that of the method's file under `configs/method`.",
            "at the defaults",
        ),
        paired_section(
            sets,
            PCA,
            "Does it pay to start at the baseline's PCA?",
            lambda said: f"With `--model.embedder_init pca` less without, mean of the 14 methods, points: {said}.",
            1,
            "Each loss at its chosen setting, which was searched without it; epoch 0 is among the checkpoints to "
            "choose from.",
            "with that start",
        ),
    ]


FINETUNED = (
    (
        "grocery_store",
        "grocery_store_finetuned",
        ["levelfield study run grocery_search --data.root DIR --output outputs/laptop/grocery_store_finetuned"],
    ),
    (
        "glyphs_240",
        "glyphs_240_finetuned",
        [
            "levelfield study run glyphs_search --search.trials 10 --runs 5 --second_searches.all 0 "
            "--output outputs/laptop/glyphs_240_finetuned",
            "levelfield study run laptop/glyphs --data.dataset.num_classes 240 --search.trials 10 --runs 5 "
            "--second_searches.all 0 --output outputs/laptop/glyphs_240",
        ],
    ),
)


def finetuned_section(folder: Path) -> Section:
    """Whether the order of losses on a frozen trunk is that of losses that train the trunk too."""
    question = "Does the frozen order foretell the fine-tuned one?"
    rows, shorts, missing = [], [], []
    for frozen, finetuned, commands in FINETUNED:
        files = [folder / name / "results.csv" for name in (frozen, finetuned)]
        if not all(file.is_file() for file in files):
            missing += [f"`{command}`" for command in commands]
            continue
        kept = [read_results(file) for file in files]
        before, after = (scores_by_method(each, "test") for each in kept)
        methods = [method for method in after if method in before and not is_baseline(method) and "@" not in method]
        mean_before, mean_after = means(before, methods), means(after, methods)
        found = kendall(mean_before, mean_after)
        shown = [each for each in compare_all(kept[1], methods) if each.kind == PAIR and each.shown]
        same = sum((mean_before[c.method] > mean_before[c.other]) == (c.difference > 0) for c in shown)
        gains = [100 * (mean_after[method] - mean_before[method]) for method in methods]
        pairs = (
            f"of the {len(shown)} pairs that the fine-tuned study shows to differ, {same} stand in that order on the "
            "frozen trunk"
            if shown
            else "the fine-tuned study shows no two of them to differ"
        )
        shorts.append(
            f"{frozen} {said_tau(found)} over {found.n} losses; {pairs}; fine-tuned, a loss scores {min(gains):.1f} to "
            f"{max(gains):.1f} points more"
        )
        rows += [[f"{frozen} `{method}`", said_mean(before[method]), said_mean(after[method])] for method in methods]
    not_run = f"Not run yet: {'; '.join(missing)}; each kept by `scripts/laptop_results.py`."
    if not rows:
        return Section(question, not_run, [])
    lines = [
        "Test MAP@R, percent, 95% intervals over the runs. Frozen, grocery_store had 50 trials a loss and 10 runs, "
        "all else here 10 trials and 5 runs. A fine-tuned training has 80 steps on grocery_store and 60 on glyphs_240 "
        "(the first 240 letters), a frozen one at most 200.",
        "",
        *table(["", "frozen", "fine-tuned"], rows),
    ]
    if missing:
        lines += ["", not_run]
    return Section(question, f"Kendall's tau of the two orders: {'. '.join(shorts)}.", lines)
