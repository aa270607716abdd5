"""The pages about the kept studies, which are frozen: their numbers follow from the archives."""

import tarfile
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from deletable import RESULTS, needs
from scipy.stats import ttest_1samp, ttest_rel
from statsmodels.stats.multitest import multipletests
from tiny_fit import REPOSITORY

pytestmark = [pytest.mark.full, needs(RESULTS)]
HELD = ("grocery_store", "banking77", "clinc150")
TITLES = {"grocery_store": "Grocery Store", "banking77": "Banking77", "clinc150": "CLINC150", "glyphs": "Glyphs"}
TITLES |= {"omniglot": "Omniglot", "news20": "20 Newsgroups", "typefaces": "Typefaces"}
SETS = (*TITLES,)
CONVERGED = [f"converged_{data}_{start}" for data in HELD for start in ("random", "pca")]
SOFTMAX = ("proxy_nca", "normalized_softmax")
PAIRS = ["contrastive", "triplet_margin", "ntxent", "multi_similarity"]
CLASSES = ["proxy_nca", "normalized_softmax", "cosface", "arcface"]
CELLS = ("{}", "converged_{}_random", "{}_pca", "converged_{}_pca")


def folders(name: str) -> list[Path]:
    """Of a kept study and its continuation."""
    kept = REPOSITORY / "results"
    return [file.parent for each in (name, f"{name}_longer") for file in kept.glob(f"*/{each}/summary.csv")]


def summary(name: str, metric: str = "map_at_r") -> dict[str, float]:
    """Method to its separated test score, in percent."""
    rows = pd.concat([pd.read_csv(folder / "summary.csv") for folder in folders(name)])
    rows = rows[(rows["embedding"] == "separated") & (rows["metric"] == metric)]
    return dict(zip(rows["method"], 100 * rows["mean"], strict=True))


def runs(name: str) -> pd.DataFrame:
    """The mean over folds of separated test MAP@R in percent: a row for each run, a column for each trained method."""
    found: dict[str, pd.Series] = {}
    for folder in folders(name):
        with tarfile.open(folder / "archive.tar.xz") as archive:
            rows = pd.read_csv(archive.extractfile("results.csv"))
        rows = rows.query("stage == 'test' and embedding == 'separated' and metric == 'map_at_r'")
        found |= dict(100 * rows[~rows["method"].str.startswith("pretrained")].pivot_table("value", "run", "method"))
    return pd.DataFrame(found)


def fourteen() -> list[str]:
    return [method for method in summary("glyphs_pca") if not method.startswith("pretrained")]


def best(scores: dict[str, float]) -> float:
    return max(scores[method] for method in fourteen() if method in scores)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")[1:-1]]


def test_the_tables_of_fixed_halves() -> None:
    page = (REPOSITORY / "results/fixed_halves.md").read_text()
    for data in HELD:
        row = []
        for cell in CELLS:
            found = runs(cell.format(data))
            each = found[PAIRS].mean(axis=1) - found[CLASSES].mean(axis=1)
            low, high = ttest_1samp(each, 0).confidence_interval(0.95)
            row.append(f"{round(each.mean(), 1) + 0.0:+.1f} ± {(high - low) / 2:.1f}")
        assert f"| {TITLES[data]} | {' | '.join(row)} |" in page
    won = {
        start: sum(summary(n)["pretrained[features]"] > best(summary(n + start)) for n in SETS)
        for start in ("", "_pca")
    }
    assert f"on {won['']} of 7 data sets from a random start, and on {won['_pca']} from a PCA" in page
    rows = [cells(line) for line in page.splitlines() if line.count("`") == 4]
    assert (len(rows), len(fourteen())) == (7, 14)
    names = {title: name for name, title in TITLES.items()}
    for title, features, pca, lda, *shown in rows:
        name = names[title.partition(" (")[0]]
        starts = (summary(name), summary(f"{name}_pca"))
        assert [features, pca, lda] == [f"{starts[0][f'pretrained{of}']:.1f}" for of in ("[features]", "", "[lda]")]
        for cell, scores in zip(shown, starts, strict=True):
            method = max(fourteen(), key=lambda each: scores[each])
            assert (cell.split()[0], cell.split()[-1]) == (f"{scores[method]:.1f}", f"`{method}`")


def test_the_gain_of_a_trained_trunk() -> None:
    page = (REPOSITORY / "docs/fine_tune.md").read_text()

    for title, steps, name, of_trunk in (
        ("Grocery Store (photographs)", 600, "grocery_store", "trunk_grocery_store"),
        ("Glyphs, the first 240 letters", 60, "glyphs_240", "glyphs_240_finetuned"),
        ("Banking77 (questions to a bank)", 400, "banking77", "trunk_banking77"),
    ):
        columns = []
        for metric in ("map_at_r", "precision_at_1"):
            frozen, moved = summary(name, metric), summary(of_trunk, metric)
            columns.append([{**frozen, **moved}["pretrained[features]"], best(frozen), best(moved)])
        row = " | ".join(f"{map_at_r:.1f} / {p1:.1f}" for map_at_r, p1 in zip(*columns, strict=True))
        assert f"| {title} | {steps} | {row} |" in page
    few = " / ".join(f"{best(summary('grocery_store_finetuned', m)):.1f}" for m in ("map_at_r", "precision_at_1"))
    assert f"after 80 steps on Grocery Store the best of six losses has {few}" in page


def count(names: list[str], second: bool) -> np.ndarray:
    """Pairs of a loss with itself in these studies, those with p < 0.05, and those that are significant by Holm."""
    total = np.zeros(3, int)
    for name in names:
        scores = runs(name)
        pairs = [*combinations([method for method in scores if "@" not in method], 2)]
        own = [(m, m.partition("@")[0]) for m in scores if "@" in m] if second else [SOFTMAX]
        pairs = [pair for pair in pairs if second or {*pair} != {*SOFTMAX}] + own
        p = np.nan_to_num([ttest_rel(scores[a], scores[b]).pvalue for a, b in pairs], nan=1.0)  # of equal runs
        shown = multipletests(p, method="holm")[0]
        total += [len(own), (p[-len(own) :] < 0.05).sum(), shown[-len(own) :].sum()]
    return total


def test_how_often_a_loss_differs_from_itself() -> None:
    again = count([*SETS, "converged_grocery_store_pca_again"], second=True)
    softmax = [*SETS, *(f"{data}_pca" for data in SETS), *CONVERGED, "glyphs_240", "glyphs_4000_steps"]
    same = count(softmax, second=False)
    together = again + same
    assert ([*again], [*same]) == ([38, 12, 10], [22, 17, 13])
    page = (REPOSITORY / "results/self_comparisons.md").read_text()
    lines = [cells(line) for line in page.splitlines() if line.count("|") == 5]
    found = [[int(cell.split()[0]) for cell in line[1:]] for line in lines if line[-1].endswith("%)")]
    assert found == [[*again], [*same], [*together]]
    page = " ".join((REPOSITORY / "results/fixed_halves.md").read_text().split())
    assert f"called different in {together[2]} of {together[0]} cases" in page
