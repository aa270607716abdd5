"""The pages about the kept studies, which are frozen: their numbers follow from the archives."""

import csv
import io
import math
import tarfile
from collections import defaultdict
from itertools import combinations
from pathlib import Path
from statistics import fmean

import pytest
from deletable import RESULTS, needs
from scipy.stats import ttest_1samp, ttest_rel
from tiny_fit import REPOSITORY

pytestmark = [pytest.mark.full, needs(RESULTS)]
HELD = ("grocery_store", "banking77", "clinc150")
TITLES = {"grocery_store": "Grocery Store", "banking77": "Banking77", "clinc150": "CLINC150", "glyphs": "Glyphs"}
TITLES |= {"omniglot": "Omniglot", "news20": "20 Newsgroups", "typefaces": "Typefaces"}
SETS = ("banking77", "clinc150", "glyphs", "grocery_store", "news20", "omniglot", "typefaces")
CONVERGED = [f"converged_{data}_{start}" for data in HELD for start in ("random", "pca")]
SOFTMAX = frozenset({"proxy_nca", "normalized_softmax"})
FEATURES = "pretrained[features]"
PAIRS = ("contrastive", "triplet_margin", "ntxent", "multi_similarity")
CLASSES = ("proxy_nca", "normalized_softmax", "cosface", "arcface")
LOSSES = (*PAIRS, *CLASSES)
CELLS = ("{}", "converged_{}_random", "{}_pca", "converged_{}_pca")


def text(page: str) -> str:
    return " ".join((REPOSITORY / page).read_text().split())


def with_continuation(name: str) -> list[Path]:
    found = [
        file for each in (name, f"{name}_longer") for file in (REPOSITORY / "results").glob(f"*/{each}/summary.csv")
    ]
    return [file.parent for file in found]


def summary(name: str, metric: str = "map_at_r") -> dict[str, float]:
    """Method to its separated test score, in percent."""
    found: dict[str, float] = {}
    for folder in with_continuation(name):
        rows = csv.DictReader((folder / "summary.csv").read_text().splitlines())
        kept = [row for row in rows if (row["embedding"], row["metric"]) == ("separated", metric)]
        found |= {row["method"]: 100 * float(row["mean"]) for row in kept}
    assert found, name
    return found


def runs(name: str) -> dict[str, list[float]]:
    """Method to the mean over folds of its separated test MAP@R in each run, percent."""
    found: dict[str, list[float]] = {}
    for folder in with_continuation(name):
        folds = defaultdict(list)
        with tarfile.open(folder / "archive.tar.xz") as archive:
            for row in csv.DictReader(io.TextIOWrapper(archive.extractfile("results.csv"), newline="")):
                if (row["stage"], row["embedding"], row["metric"]) == ("test", "separated", "map_at_r"):
                    folds[row["method"], int(row["run"])].append(100 * float(row["value"]))
        found |= {m: [fmean(folds[key]) for key in sorted(folds) if key[0] == m] for m, _ in folds}
    return found


def trained(scores: dict[str, float]) -> list[str]:
    return [method for method in scores if not method.startswith("pretrained")]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")[1:-1]]


def pair_less_class(means: dict[str, float]) -> float:
    return fmean(means[x] for x in PAIRS) - fmean(means[x] for x in CLASSES)


def test_the_tables_of_which_loss() -> None:
    page = (REPOSITORY / "docs/which_loss.md").read_text()
    for data in HELD:
        row = []
        for cell in CELLS:
            found = runs(cell.format(data))
            each = [pair_less_class({x: found[x][run] for x in LOSSES}) for run in range(len(found[LOSSES[0]]))]
            low, high = ttest_1samp(each, 0).confidence_interval(0.95)
            row.append(f"{round(fmean(each), 1) + 0.0:+.1f} ± {(high - low) / 2:.1f}")
        assert f"| {TITLES[data]} | {' | '.join(row)} |" in page
    rows = [cells(line) for line in page.splitlines() if line.count("`") == 4]
    assert len(rows) == 7
    folders = {title: name for name, title in TITLES.items()}
    for title, features, pca, lda, *best in rows:
        name = folders[title.partition(" (")[0]]
        starts = (summary(name), summary(f"{name}_pca"))
        assert [features, pca, lda] == [f"{starts[0][f'pretrained{of}']:.1f}" for of in ("[features]", "", "[lda]")]
        fourteen = trained(starts[1])
        assert len(fourteen) == 14
        for cell, scores in zip(best, starts, strict=True):
            method = max(fourteen, key=lambda each: scores[each])
            assert (cell.split()[0], cell.split()[-1]) == (f"{scores[method]:.1f}", f"`{method}`")


def test_the_gain_of_a_trained_trunk() -> None:
    page = (REPOSITORY / "docs/fine_tune.md").read_text()
    fourteen = set(trained(summary("glyphs_pca")))

    def best(scores: dict[str, float]) -> float:
        return max(scores[method] for method in fourteen & set(scores))

    for title, steps, name, of_trunk in (
        ("Grocery Store (photographs)", 600, "grocery_store", "trunk_grocery_store"),
        ("Glyphs, the first 240 letters", 60, "glyphs_240", "glyphs_240_finetuned"),
        ("Banking77 (questions to a bank)", 400, "banking77", "trunk_banking77"),
    ):
        columns = []
        for metric in ("map_at_r", "precision_at_1"):
            frozen, moved = summary(name, metric), summary(of_trunk, metric)
            columns.append([{**frozen, **moved}[FEATURES], best(frozen), best(moved)])
        row = " | ".join(f"{map_at_r:.1f} / {p1:.1f}" for map_at_r, p1 in zip(*columns, strict=True))
        assert f"| {title} | {steps} | {row} |" in page
    few = " / ".join(f"{best(summary('grocery_store_finetuned', m)):.1f}" for m in ("map_at_r", "precision_at_1"))
    assert f"after 80 steps on Grocery Store the best of six losses has {few}" in page


def significant(p: dict[frozenset[str], float]) -> set[frozenset[str]]:
    """Holm: from the smallest p on, while p x the pairs left is below 5%. Equal runs have no p and count as 1."""
    p = {pair: 1.0 if math.isnan(each) else each for pair, each in p.items()}
    found = set()
    for step, pair in enumerate(sorted(p, key=lambda pair: p[pair])):
        if p[pair] * (len(p) - step) >= 0.05:
            break
        found.add(pair)
    return found


def count(names: list[str], second: bool) -> tuple[int, ...]:
    """Pairs of a loss with itself in these studies, those with p < 0.05, and those that are significant."""
    total = [0, 0, 0]
    for name in names:
        scores = {method: values for method, values in runs(name).items() if not method.startswith("pretrained")}
        pairs = [frozenset(pair) for pair in combinations([m for m in scores if "@" not in m], 2)]
        own = [frozenset({m, m.partition("@")[0]}) for m in scores if "@" in m] if second else [SOFTMAX]
        p = {pair: ttest_rel(*(scores[m] for m in pair)).pvalue for pair in (*pairs, *own)}
        shown = significant(p)
        found = (len(own), sum(p[pair] < 0.05 for pair in own), sum(pair in shown for pair in own))
        total = [sum(both) for both in zip(total, found, strict=True)]
    return tuple(total)


def test_how_often_a_loss_differs_from_itself() -> None:
    again = count([*SETS, "converged_grocery_store_pca_again"], second=True)
    softmax = [*SETS, *(f"{data}_pca" for data in SETS), *CONVERGED, "glyphs_240", "glyphs_4000_steps"]
    same = count(softmax, second=False)
    together = tuple(sum(both) for both in zip(again, same, strict=True))
    assert (again, same) == ((38, 12, 10), (22, 17, 13))
    for page in ("results/self_comparisons.md", "docs/statistics.md"):
        lines = [cells(line) for line in (REPOSITORY / page).read_text().splitlines() if line.count("|") == 5]
        found = [tuple(int(cell.split()[0]) for cell in line[1:]) for line in lines if line[-1].endswith("%)")]
        assert found == [again, same, together]
    assert f"in {together[2]} of {together[0]} cases" in text("results/README.md")
