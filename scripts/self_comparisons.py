"""Writes results/self_comparisons.md: how often the kept studies call a searched loss different from itself.

python scripts/self_comparisons.py

There are two kinds of pairs. `arcface@2` is a second search of `arcface`. ProxyNCA is the normalised softmax with
T = 1/(2k), but it has another search space. The tests are those of a study's verdicts: paired over runs, with Holm's
correction over the pairs of the study. A study pairs a second search with no other method, so here its pairs with the
first join that correction.

Studies of fixed settings are left out: the same settings and seeds give the same training.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import yaml
from questions import RESULTS, kept, signed, table, text_of

from levelfield.analysis.comparison import PAIR, SECOND_SEARCH, Comparison, compare_all
from levelfield.analysis.statistics import LEVEL, holm
from levelfield.study.spec import BASELINE

AGAIN, SAME = "second search", "ProxyNCA against normalised softmax"
SOFTMAX = {"proxy_nca", "normalized_softmax"}
# A study whose pair of SOFTMAX is in another study too, with the same runs.
REPEATED = "_again"
PAGE = """\
# A loss compared with itself

For reviewers: how far to trust "significantly better" when each loss was searched. `python scripts/self_comparisons.py`
writes this page from the archives.

{summary}

If the settings were equal, about 5% of the pairs would have p < 0.05, and fewer after the correction. But each search
ends at other settings, and runs with other seeds do not show what that changes.

- A second search of a loss has other trials. A study does not test it: here these pairs joined its Holm correction.
- ProxyNCA and the normalised softmax are one function. Their files search its scale over other ranges.
- {reused} studies, `SET_pca`, reuse the settings that were searched for a random start: these are no new searches.
- In {equal} pairs both searches kept the setting of the files, so the trainings are the same.
- The pairs share data sets, losses and seeds. So the share is a count, not an estimate for your study.

## All pairs

Points of MAP@R on the test classes, second less first, or ProxyNCA less normalised softmax.

{pairs}
"""


@dataclass(frozen=True)
class Pair:
    """A loss compared with itself in a study; `p_holm` of `comparison` counts all comparisons in `family`."""

    study: str
    kind: str
    comparison: Comparison


def reuses(name: str) -> bool:
    """Whether a study has the settings that another one searched: `SET_pca`, those of `SET`."""
    return name.endswith("_pca") and (RESULTS / name.removesuffix("_pca")).is_dir()


def searched(name: str) -> bool:
    return reuses(name) or yaml.safe_load(text_of(name, "study.yaml"))["search"]["trials"] > 0


def pairs() -> Iterator[Pair]:
    """All pairs of the kept studies, by study."""
    for archive in sorted(RESULTS.glob("*/archive.tar.xz")):
        name = archive.parent.name
        study = kept(name)
        if study is None or not searched(name):
            continue
        rows = dict.fromkeys(row.method for row in study.rows)
        methods = [row for row in rows if not row.startswith(BASELINE)]
        found = compare_all(study.rows, methods, by_runs=True)
        of_study = [each for each in found if each.kind == PAIR]
        again = [each for each in found if each.kind == SECOND_SEARCH]
        for each in of_study:
            if {each.method, each.other} == SOFTMAX and not name.endswith(REPEATED):
                yield Pair(name, SAME, each)
        p = np.array([np.nan if each.p is None else each.p for each in (*of_study, *again)])
        for each, p_holm in zip(again, holm(p)[len(of_study) :], strict=True):
            yield Pair(name, AGAIN, replace(each, p_holm=float(p_holm), family=len(p)))


def counts(found: list[Pair]) -> tuple[int, int, int]:
    """Pairs, those with p < 0.05, and those with Holm's p < 0.05."""
    smaller = [each.comparison.p is not None and each.comparison.p < LEVEL for each in found]
    return len(found), sum(smaller), sum(each.comparison.shown for each in found)


def summary(found: list[Pair]) -> str:
    rows = {}
    for title, kinds in ((AGAIN, {AGAIN}), (SAME, {SAME}), ("together", {AGAIN, SAME})):
        number, p, corrected = counts([each for each in found if each.kind in kinds])
        rows[title] = [str(number), str(p), f"{corrected} ({corrected / number:.0%})"]
    return table(["pairs", "p < 0.05", "Holm's p < 0.05"], rows)


def of_pair(pair: Pair) -> list[str]:
    each = pair.comparison
    turn = -1 if each.method == "normalized_softmax" else 1
    names = each.other if pair.kind == AGAIN else "proxy_nca, normalized_softmax"
    assert each.p is not None
    assert each.p_holm is not None
    small = [f"{p:.4f}" if p >= 1e-4 else "< 0.0001" for p in (each.p, each.p_holm)]
    return [names, signed(100 * turn * each.difference), *small, str(each.family), "yes" if each.shown else "no"]


def page() -> str:
    found = list(pairs())
    head = ["study", "loss", "difference", "p", "Holm's p", "over pairs", "called different"]
    lines = [head, ["---"] * len(head), *([each.study, *of_pair(each)] for each in found)]
    reused = [each for each in found if reuses(each.study)]
    equal = [each for each in found if each.kind == SAME and abs(each.comparison.difference) < 1e-5]
    return PAGE.format(
        summary=summary(found),
        reused=len(reused),
        equal=len(equal),
        pairs="\n".join(f"| {' | '.join(line)} |" for line in lines),
    )


if __name__ == "__main__":
    (RESULTS / "self_comparisons.md").write_text(page())
