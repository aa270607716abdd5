"""Writes results/laptop.md, the appendix of the studies of 200 steps, from the archives in results/.

python scripts/laptop.py

Scores are separated test MAP@R in percent, as means over runs; differences are in points.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import fmean

from questions import FEATURES, RESULTS, Kept, evaluations, interval, kept, table
from scipy.stats import rankdata

from levelfield.analysis.comparison import PAIR, SECOND_SEARCH, Comparison, compare_all, scores_of
from levelfield.analysis.statistics import t_interval

ALL = {
    "grocery_store": "Grocery Store",
    "banking77": "Banking77",
    "clinc150": "CLINC150",
    "news20": "20 Newsgroups",
    "glyphs": "Glyphs",
    "omniglot": "Omniglot",
    "typefaces": "Typefaces",
}
UNTRAINED = (FEATURES, "pretrained", "pretrained[pca512]", "pretrained[lda]")
TRAINED = {
    "grocery_store": ("grocery_store_finetuned", "Grocery Store, 80 steps"),
    "glyphs_240": ("glyphs_240_finetuned", "240 letters, 60 steps"),
}
PAGE = """\
# 14 losses on a laptop

For reviewers. These are all scores of the studies of 200 steps. `python scripts/laptop.py` writes this page from the
archives.

Each loss trained a linear layer of 128 numbers on a frozen trunk, from random weights, for at most 200 steps of 32
samples. Each was searched with 50 trials, and run ten times on four folds. Another start or a longer training changes
the order: see [the results](README.md). MAP@R on the test classes in percent, separated, ± half a 95% interval over
runs; differences over several sets have ± half an interval over the sets. Each set's `summary.csv` has P@1 and the
concatenated scores. `proxy_nca` is the `normalized_softmax` with another parameter, so their difference is luck of the
search. All intervals and tests hold for other seeds, not for another search: see
[a loss compared with itself](self_comparisons.md).

## Untrained trunk, and 14 losses

`pretrained` is a PCA to 128 numbers, `pretrained[pca512]` one to 512. "Better" and "worse" count the sets with a
significant difference from `contrastive`: paired over ten runs, with Holm's correction over the 91 pairs of a set.

{fourteen}

## 18 newer methods

They were added to the studies later and searched in the same way. Ranks and Holm's correction are over all 32 methods.

{newer}

The best newer method less the best of the 14, each picked on the test classes of a set: {gain} points. With 18 to pick
from against 14, this favours the newer ones. Six of them are a loss with a regularizer:

{regularizers}

## What changes the scores besides the loss

Means over the 14 losses, with the smallest and the largest. The first two rows are test scores over the same seeds. A
setting of another set is scored on the validation folds, where the own setting was chosen, which favours it. Two
searches of one loss differ in trials and seeds.

{effects}

## Frozen and trained trunk

Six losses, searched with 10 trials each while the whole trunk trains, five runs. Grocery Store's frozen column has 50
trials and ten runs.

{trained}

## Evaluations of the test classes

{counts}

By the ledgers of all archives in this folder. The best loss was picked on these classes, so its score is optimistic.

## The archives

`results/SET/archive.tar.xz` holds a study, every result, its tables and its evaluations of the test classes.
`SET_defaults` has the settings of the method files, `SET_pca` starts at a PCA, `SET_transfer` has the settings of other
sets. Their studies are in the archives.

    levelfield study verify results/SET/archive.tar.xz
    levelfield study report results/SET/archive.tar.xz --output outputs/SET

This command adds another loss to a study:

    levelfield study run laptop/SET --data.root DIR --from results/SET/archive.tar.xz \\
      --add-method my_loss.MyLoss --reopen-test "my loss"

Typefaces is no longer a data set here: its results are kept, and no study of it can be run.
"""


def of(name: str) -> Kept:
    found = kept(name)
    assert found is not None, name
    return found


def trained_in(study: Kept) -> list[str]:
    """Methods of a study with first searches, without the untrained rows."""
    names = dict.fromkeys(row.method for row in study.rows)
    return [name for name in names if not name.startswith("pretrained") and "@" not in name]


FOURTEEN = trained_in(of("glyphs_pca"))
NEWER = [name for name in trained_in(of("glyphs")) if name not in FOURTEEN]


def score(values: Sequence[float]) -> str:
    half = t_interval(values) if len(values) > 1 else None
    return f"{fmean(values):.1f}" + ("" if half is None else f" ± {half:.1f}")


@cache
def pairs(data: str, methods: tuple[str, ...]) -> dict[tuple[str, str], tuple[float, bool]]:
    """Method and other method to their difference in points, and whether it is significant."""
    found = {}
    for each in compare_all(of(data).rows, list(methods)):
        if each.kind == PAIR:
            found[each.method, each.other] = (100 * each.difference, each.shown)
            found[each.other, each.method] = (-100 * each.difference, each.shown)
    return found


def over(method: str, other: str, methods: Sequence[str]) -> list[str]:
    """Mean difference over the sets, and the sets with a significantly better and worse score; empty for itself."""
    if method == other:
        return ["", "", ""]
    found = [pairs(data, tuple(methods))[method, other] for data in ALL]
    better, worse = (sum(sign * gain > 0 and significant for gain, significant in found) for sign in (1, -1))
    return [interval([gain for gain, _ in found]), str(better), str(worse)]


def losses(shown: Sequence[str], compared: Sequence[str], untrained: Sequence[str] = ()) -> str:
    """A row for each loss, the best mean rank first."""
    means = {data: [-of(data).mean(method) for method in compared] for data in ALL}
    places = {data: dict(zip(compared, rankdata(values), strict=True)) for data, values in means.items()}
    ranks = {method: fmean(places[data][method] for data in ALL) for method in shown}
    rows = {f"`{name}`": [score(of(data).runs(name)) for data in ALL] + [""] * 4 for name in untrained}
    for method in sorted(shown, key=lambda each: ranks[each]):
        scores = [score(of(data).runs(method)) for data in ALL]
        rows[f"`{method}`"] = [*scores, f"{ranks[method]:.1f}", *over(method, "contrastive", compared)]
    return table([*ALL.values(), "mean rank", "over contrastive", "better", "worse"], rows)


def regularizers() -> str:
    """The newer methods that are one of the 14 with a regularizer, over the loss without it."""
    plain = {name: loss for name in NEWER for loss in FOURTEEN if name.startswith(f"{loss}_") and loss != "proxy_nca"}
    rows = {f"`{name}`": over(name, loss, [*FOURTEEN, *NEWER]) for name, loss in plain.items()}
    return table(["over the loss alone", "better", "worse"], rows)


def newer_gain() -> str:
    best = {data: [max(of(data).mean(each) for each in group) for group in (NEWER, FOURTEEN)] for data in ALL}
    return interval([newer - earlier for newer, earlier in best.values()])


def spread(values: Sequence[float]) -> str:
    mean, least, most = (round(each, 1) + 0.0 for each in (fmean(values), min(values), max(values)))  # no -0.0
    return f"{mean:+.1f} ({least:+.1f} to {most:+.1f})"


def effect(data: str, follow_up: str, sign: int) -> str:
    """The follow-up study less the search of 50 trials, over the runs that both have; `sign` -1 reverses it."""
    other, searched = of(f"{data}_{follow_up}"), of(data)
    differences = []
    for method in FOURTEEN:
        pairs = list(zip(other.runs(method), searched.runs(method), strict=False))
        differences.append(sign * fmean(after - before for after, before in pairs))
    return spread(differences)


def second_searches(data: str) -> str:
    names = dict.fromkeys(row.method for row in of(data).rows)
    found: list[Comparison] = [each for each in compare_all(of(data).rows, list(names)) if each.kind == SECOND_SEARCH]
    sizes = [100 * abs(each.difference) for each in found]
    return f"{fmean(sizes):.1f} (up to {max(sizes):.1f}, {len(sizes)} losses)"


def transferred(data: str) -> str:
    """The cost of another set's setting, on the validation folds: own setting less the other one."""
    scores = scores_of(of(f"{data}_transfer").rows, "map_at_r", "separated", "run")
    costs = []
    for method in FOURTEEN:
        own = fmean(scores[f"{method}.{data}"][0].values())
        others = [fmean(scores[f"{method}.{other}"][0].values()) for other in ALL if other != data]
        costs += [100 * (own - other) for other in others]
    return spread(costs)


def effects() -> str:
    rows = {
        "search less defaults": [effect(data, "defaults", -1) for data in ALL],
        "PCA start less random": [effect(data, "pca", 1) for data in ALL],
        "own setting less another set's": [transferred(data) for data in ALL],
        "two searches of one loss, size": [second_searches(data) for data in ALL],
    }
    return table(list(ALL.values()), rows)


def trained() -> str:
    frozen = {name: of(name) for name in TRAINED}
    moved = {name: of(study) for name, (study, _) in TRAINED.items()}
    head = [f"{title}: {what}" for _, title in TRAINED.values() for what in ("frozen", "trained")]
    rows = {
        f"`{loss}`": [score(study.runs(loss)) for name in TRAINED for study in (frozen[name], moved[name])]
        for loss in trained_in(moved["glyphs_240"])
    }
    return table(head, rows)


def page() -> str:
    return PAGE.format(
        fourteen=losses(FOURTEEN, FOURTEEN, UNTRAINED),
        newer=losses(NEWER, [*FOURTEEN, *NEWER]),
        gain=newer_gain(),
        regularizers=regularizers(),
        effects=effects(),
        trained=trained(),
        counts=table(list(ALL.values()), {"times": [str(evaluations(data)) for data in ALL]}),
    )


def main(path: Path = RESULTS / "laptop.md") -> None:
    path.write_text(page())


if __name__ == "__main__":
    main()
