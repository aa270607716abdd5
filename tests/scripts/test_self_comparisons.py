"""scripts/self_comparisons.py: its counts, from the archives by SciPy's t-test and Holm's steps in a loop."""

import csv
import importlib
import io
import math
import tarfile
from collections import defaultdict
from itertools import combinations
from statistics import fmean

import pytest
from scipy.stats import ttest_rel
from tiny_fit import REPOSITORY

RESULTS = REPOSITORY / "results"
SETS = ("banking77", "clinc150", "glyphs", "grocery_store", "news20", "omniglot", "typefaces")
AGAIN = "converged_grocery_store_pca_again"
STARTS = [
    f"converged_{data}_{start}" for data in ("banking77", "clinc150", "grocery_store") for start in ("pca", "random")
]
SOFTMAX = frozenset({"proxy_nca", "normalized_softmax"})


def runs(name: str) -> dict[str, list[float]]:
    """Method to its test MAP@R in each run; of a continuation `NAME_longer` if it has the method."""
    found: dict[str, list[float]] = {}
    for each in (name, f"{name}_longer"):
        if (RESULTS / each).is_dir():
            folds = defaultdict(list)
            with tarfile.open(RESULTS / each / "archive.tar.xz") as archive:
                for row in csv.DictReader(io.TextIOWrapper(archive.extractfile("results.csv"), newline="")):
                    if (row["stage"], row["embedding"], row["metric"]) == ("test", "separated", "map_at_r"):
                        folds[row["method"], int(row["run"])].append(float(row["value"]))
            methods = {method for method, _ in folds if not method.startswith("pretrained")}
            found |= {m: [fmean(folds[key]) for key in sorted(folds) if key[0] == m] for m in methods}
    return found


def significant(p: dict[frozenset[str], float]) -> set[frozenset[str]]:
    """Holm: from the smallest p on, while p x the pairs left is below 5%. Equal runs have no p and count as 1."""
    p = {pair: 1.0 if math.isnan(each) else each for pair, each in p.items()}
    found = set()
    for step, pair in enumerate(sorted(p, key=lambda pair: p[pair])):
        if p[pair] * (len(p) - step) >= 0.05:
            break
        found.add(pair)
    return found


def count(names: list[str], second: bool) -> tuple[int, int, int]:
    """Pairs of a loss with itself in these studies, those with p < 0.05, and those that are significant."""
    total = [0, 0, 0]
    for name in names:
        scores = runs(name)
        pairs = [frozenset(pair) for pair in combinations([m for m in scores if "@" not in m], 2)]
        own = [frozenset({m, m.partition("@")[0]}) for m in scores if "@" in m] if second else [SOFTMAX]
        p = {pair: ttest_rel(*(scores[m] for m in pair)).pvalue for pair in (*pairs, *own)}
        shown = significant(p)
        found = (len(own), sum(p[pair] < 0.05 for pair in own), sum(pair in shown for pair in own))
        total = [sum(both) for both in zip(total, found, strict=True)]
    return total[0], total[1], total[2]


def test_the_counts_follow_from_the_archives_and_are_on_the_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))
    module = importlib.import_module("self_comparisons")
    again = count([*SETS, AGAIN], second=True)
    same = count([*SETS, *(f"{data}_pca" for data in SETS), *STARTS, "glyphs_240", "glyphs_4000_steps"], second=False)
    assert again == (38, 12, 10)
    assert same == (22, 17, 13)
    found = list(module.pairs())
    assert module.counts([each for each in found if each.kind == module.AGAIN]) == again
    assert module.counts([each for each in found if each.kind == module.SAME]) == same
    assert (RESULTS / "self_comparisons.md").read_text() == module.page()
    pairs, _, shown = module.counts(found)
    for page in ("docs/statistics.md", "results/self_comparisons.md"):
        assert module.summary(found) in (REPOSITORY / page).read_text()
    for page in ("docs/statistics.md", "results/README.md"):
        assert f"in {shown} of {pairs} cases" in " ".join((REPOSITORY / page).read_text().split())
