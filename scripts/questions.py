"""Writes the answers in results/questions.md and results/answers.svg, from the archives in results/.

python scripts/questions.py

If a study has no archive, the tables say "not run". A study NAME_longer repeats, with a higher cap on the steps, the
losses of NAME of which more than 5% of the trainings reached the cap. Its scores replace those of NAME.
"""

from __future__ import annotations

import csv
import io
import json
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import get_type_hints

import numpy as np
import yaml
from scipy.stats import kendalltau

from levelfield.analysis.comparison import PAIR, SECOND_SEARCH, compare_all, scores_of
from levelfield.analysis.results import ResultRow
from levelfield.analysis.selection import selected
from levelfield.analysis.statistics import t_interval
from levelfield.study.archive import unpack_study
from levelfield.study.folder import StudyFolder

RESULTS = Path(__file__).resolve().parents[1] / "results"
SETS = {
    "grocery_store": "Grocery Store",
    "banking77": "Banking77",
    "clinc150": "CLINC150",
    "glyphs": "Glyphs",
    "omniglot": "Omniglot",
}
PAIRS = ("contrastive", "triplet_margin", "ntxent", "multi_similarity")
CLASSES = ("proxy_nca", "normalized_softmax", "cosface", "arcface")
LOSSES = (*PAIRS, *CLASSES)
SPLIT, SPLITS = ("contrastive", "multi_similarity", "normalized_softmax", "arcface"), 4
TRUNK = ("ntxent", "multi_similarity", "normalized_softmax", "arcface")
HEAD_OF_TRUNK = [
    *("features", *(f"`{loss}`" for loss in TRUNK), "averaged less trained, ± over four losses"),
    *("pair less class-weight", "between losses", "tau with the heads"),
]
# Cell to the name of a study's folder.
CELLS = {
    "200 steps, random": "{}",
    "until done, random": "converged_{}_random",
    "200 steps, PCA": "{}_pca",
    "until done, PCA": "converged_{}_pca",
}
DONE, BEST = "until done, random", "until done, PCA"
FEATURES = "pretrained[features]"
# Where the answers begin in questions.md.
MARK = "<!-- scripts/questions.py writes the rest -->"
MAP, P1 = "map_at_r", "precision_at_1"
CONCLUSION = """\
Training the trunk matters more than the loss on both sets where it was run. The start does on two of three sets. The
length does not: it is ahead in one of six comparisons, and equal in another. All this is for one search of each loss,
and a loss differs [from itself](self_comparisons.md) by up to 5.5 points. A trained trunk has 1,280 or 384 numbers, a
head 128."""
OF_TRUNKS = """\
Two runs have no interval, so ± takes the four losses as the sample. Both intervals contain 0: averaging is not shown to
help. The smallest possible p of a tau of four losses is 0.083: four losses cannot tell. Grocery Store was computed on
an H100, in a checkout with uncommitted changes. All other archives are from clean checkouts, on CPUs."""


@dataclass(frozen=True)
class Kept:
    """A study in results/ with its test scores.

    Attributes:
        archives: The archive of the study, and of its continuation with a higher cap.
        rows: The rows of both; those of the continuation replace those of the study.
    """

    archives: list[Path]
    rows: list[ResultRow]

    def runs(self, method: str, metric: str = MAP) -> list[float]:
        """The mean over folds of each run's test score, in percent; empty for a missing method."""
        found = scores_of(self.rows, metric, "separated", "test").get(method, {})
        return [100 * fmean(folds.values()) for _, folds in sorted(found.items())]

    def mean(self, method: str, metric: str = MAP) -> float:
        return fmean(self.runs(method, metric))

    def ends(self) -> tuple[int, int, list[str]]:
        """Trainings at the cap, all trainings of the runs, and settings at a bound."""
        ends: dict[str, list[str]] = {}
        bounds: list[str] = []
        for archive in self.archives:
            with tempfile.TemporaryDirectory() as aside:
                unpack_study(archive, Path(aside, "study"))
                study = StudyFolder.begun(Path(aside, "study"))
                found: dict[str, list[str]] = {}
                for job, result in study.state.results.items():
                    if job.stage == "run" and (by := result.get("ending", {}).get("stopped_by")):
                        found.setdefault(job.method, []).append(by)
                ends |= found
                bounds += [f"`{row}`: {advice}" for row, each in selected(study).items() for advice in each.remarks]
        stopped = [by for each in ends.values() for by in each]
        return stopped.count("cap"), len(stopped), bounds


@cache
def kept(name: str) -> Kept | None:
    """A study of results/; None if it is missing."""
    archive = RESULTS / name / "archive.tar.xz"
    if not archive.is_file():
        return None
    lines = csv.DictReader(io.StringIO(text_of(name, "results.csv"), newline=""))
    types = get_type_hints(ResultRow)
    read = {int | None: lambda text: int(text) if text else None, float: float, str: str}
    rows = [ResultRow(**{name: read[types[name]](text) for name, text in line.items()}) for line in lines]
    longer = kept(f"{name}_longer")
    if longer is None:
        return Kept([archive], rows)
    continued = {row.method for row in longer.rows}
    rows = [row for row in rows if row.method not in continued] + longer.rows
    return Kept([archive, *longer.archives], rows)


def text_of(name: str, member: str) -> str:
    """A file of a study's archive."""
    with tarfile.open(RESULTS / name / "archive.tar.xz") as members:
        file = members.extractfile(member)
        assert file is not None
        return file.read().decode()


@cache
def evaluated() -> dict[str, set[str]]:
    """The evaluations in all ledgers by the test classes: a study's data set and split, as JSON."""
    found: dict[str, set[str]] = {}
    for archive in RESULTS.glob("*/archive.tar.xz"):
        events = [json.loads(line) for line in text_of(archive.parent.name, "ledger.jsonl").splitlines()]
        ids = {event["id"] for event in events if event["event"] == "evaluated"}
        found[test_classes(archive.parent.name)] = found.get(test_classes(archive.parent.name), set()) | ids
    return found


@cache
def test_classes(name: str) -> str:
    methods = yaml.safe_load(text_of(name, "study.yaml"))["methods"]
    data = next(iter(methods.values()))["data"]
    return json.dumps([data["dataset"], data.get("split")])


def evaluations(data: str) -> int:
    """How often the studies in results/ evaluated the test classes of a data set's fixed halves."""
    return len(evaluated()[test_classes(data)])


def cells(data: str) -> Iterator[tuple[str, Kept]]:
    """The cells of a data set with a study."""
    for cell, name in CELLS.items():
        study = kept(name.format(data))
        if study is not None:
            yield cell, study


def interval(values: Sequence[float]) -> str:
    """`+0.4 ± 0.2`, half a 95% t-interval; only the mean for fewer than three values."""
    half = t_interval(values)
    return signed(fmean(values)) + ("" if half is None else f" ± {half:.1f}")


def signed(points: float) -> str:
    """`+0.4`; also `+0.0` for a small negative number."""
    return f"{round(points, 1) + 0.0:+.1f}"


def table(head: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    lines = [["", *head], ["---"] * (len(head) + 1), *([name, *cells] for name, cells in rows.items())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def by_cell(what: str, say: Callable[[str, Kept], str]) -> str:
    """A table of data sets and cells; `say` returns the text for a data set and the study of a cell."""
    rows = {}
    for data, title in SETS.items():
        found = dict(cells(data))
        rows[title] = [say(data, found[cell]) if cell in found else "not run" for cell in CELLS]
    return f"{what}\n\n{table(list(CELLS), rows)}"


def pair_less_class(study: Kept) -> list[float]:
    """For each run: mean of the four pair losses minus that of the four with class weights, points of MAP@R."""
    runs = {loss: study.runs(loss) for loss in LOSSES}
    numbers = range(len(runs[PAIRS[0]]))
    return [fmean(runs[loss][n] for loss in PAIRS) - fmean(runs[loss][n] for loss in CLASSES) for n in numbers]


def over_searches(study: Kept) -> tuple[float, float]:
    """The smallest and largest mean of `pair_less_class`, if each kept search of a loss may replace the first."""
    again = kept("converged_grocery_store_pca_again") if study is kept("converged_grocery_store_pca") else None
    means = {loss: [study.mean(loss)] for loss in LOSSES}
    for loss in LOSSES:
        means[loss] += [other.mean(f"{loss}@2") for other in (study, again) if other and other.runs(f"{loss}@2")]
    means["proxy_nca"] = means["normalized_softmax"] = means["proxy_nca"] + means["normalized_softmax"]  # one function
    lowest, highest = ({loss: end(found) for loss, found in means.items()} for end in (min, max))
    ends = ((lowest, highest), (highest, lowest))
    low, high = (fmean(pair[loss] for loss in PAIRS) - fmean(other[loss] for loss in CLASSES) for pair, other in ends)
    return low, high


def above_features(data: str, study: Kept, metric: str) -> int:
    features = kept(data)  # the trunk, split and samples of all cells of a set are the same
    assert features is not None
    return sum(study.mean(loss, metric) > features.mean(FEATURES, metric) for loss in LOSSES)


def spread(study: Kept) -> float:
    """Standard deviation between the eight losses' means, points."""
    return stdev(study.mean(loss) for loss in LOSSES)


def second_searches() -> Kept | None:
    """Eight losses on Grocery Store, until done from the PCA: three by their second search, which has its own seeds."""
    again = kept("converged_grocery_store_pca_again")
    if again is None:
        return None
    twice = {row.method.removesuffix("@2") for row in again.rows if row.method.endswith("@2")}
    rows = [replace(row, method=row.method.removesuffix("@2")) for row in again.rows if row.method not in twice]
    return replace(again, rows=rows)


def beats_contrastive() -> str:
    studies = {title: kept(CELLS[BEST].format(data)) for data, title in SETS.items()}
    studies["Grocery Store, second searches"] = second_searches()
    rows = {}
    for loss in LOSSES[1:]:
        said = []
        for study in studies.values():
            if study is None:
                said.append("not run")
                continue
            pairs = [each for each in compare_all(study.rows, list(LOSSES)) if each.kind == PAIR]
            (over,) = (each for each in pairs if {each.method, each.other} == {"contrastive", loss})
            gain = over.difference if over.method == loss else -over.difference
            said.append(signed(100 * gain) + (" shown" if over.shown else ""))
        rows[f"`{loss}`"] = said
    return table(list(studies), rows)


def changes() -> str:
    """Effects of initial weights and length, compared with the spread between losses."""
    rows = {}
    for data, title in SETS.items():
        found = dict(cells(data))
        said = []
        for before, after in ((DONE, BEST), ("200 steps, random", DONE), ("200 steps, PCA", BEST)):
            if before in found and after in found:
                each = [found[after].mean(loss) - found[before].mean(loss) for loss in LOSSES]
                said.append(f"{signed(fmean(each))} ({signed(min(each))} to {signed(max(each))})")
            else:
                said.append("not run")
        said += [f"{spread(found[cell]):.1f}" if cell in found else "not run" for cell in ("200 steps, random", BEST)]
        rows[title] = said
    head = ["PCA less random, until done", "until done less 200 steps, random", "the same, PCA"]
    return table([*head, "between losses, 200 steps, random", "between losses, until done, PCA"], rows)


def the_sentence() -> str:
    """For each factor, its mean change against the spread between losses in one of the two cells, the larger one."""
    factors = {
        "start, until done": (DONE, BEST, LOSSES),
        "length, random": ("200 steps, random", DONE, LOSSES),
        "length, PCA": ("200 steps, PCA", BEST, LOSSES),
        "trunk trained, from the head (PCA, until done)": (BEST, "trunk", TRUNK),
    }
    rows: dict[str, list[str]] = {}
    for data, title in SETS.items():
        studies = {**dict(cells(data)), "trunk": kept(f"trunk_{data}")}
        for before, after, losses in factors.values():
            found = [studies.get(cell) for cell in (before, after)]
            means = [[study.mean(loss) for loss in losses] for study in found if study is not None]
            if len(means) < 2:
                rows.setdefault(title, []).append("not run")
                continue
            change, spread_between = round(fmean(means[1]) - fmean(means[0]), 1), round(max(map(stdev, means)), 1)
            answer = "tie" if abs(change) == spread_between else "yes" if abs(change) > spread_between else "no"
            rows.setdefault(title, []).append(f"{signed(change)} / {spread_between}: {answer}")
    return table(list(factors), rows)


def of_kept(name: str, head: Sequence[str], row: Callable[[str, Kept], Sequence[str]]) -> str:
    """A table of the data sets that have the study; `row` returns the cells for a data set and its study."""
    studies = {data: kept(name.format(data)) for data in SETS}
    rows = {SETS[data]: row(data, study) for data, study in studies.items() if study is not None}
    return table(head, rows) if rows else "not run"


def second_less_first(study: Kept) -> dict[str, float]:
    """Loss to its second search less its first, points of MAP@R."""
    names = sorted({row.method for row in study.rows if not row.method.startswith("pretrained")})
    found = [each for each in compare_all(study.rows, names) if each.kind == SECOND_SEARCH]
    return {each.other: 100 * each.difference for each in found}


def proxy_nca_less_softmax(study: Kept) -> float:
    """Two searches of one loss: ProxyNCA is the normalised softmax with another name for its scale."""
    return study.mean("proxy_nca") - study.mean("normalized_softmax")


def search_noise(_: str, study: Kept) -> list[str]:
    return [", ".join(f"{loss} {points:+.1f}" for loss, points in second_less_first(study).items())]


def luck(data: str) -> float:
    """The largest difference of two searches of one loss on a data set, points of MAP@R."""
    again = kept(f"converged_{data}_pca_again")
    found = [proxy_nca_less_softmax(study) for _, study in cells(data)]
    return max(map(abs, [*found, *(second_less_first(again).values() if again else ())]))


def split_noise(_: str, study: Kept) -> list[str]:
    """Standard deviation over splits, over runs and between losses, of scores less the mean of the losses."""
    scores = np.array([[study.runs(f"{loss}[{split}]") for split in range(SPLITS)] for loss in SPLIT])
    of_losses = scores - scores.mean(axis=0)  # losses x splits x runs
    over_splits = of_losses.mean(axis=2).var(axis=1, ddof=1).mean() ** 0.5
    over_runs = of_losses.var(axis=2, ddof=1).mean() ** 0.5
    between = of_losses.mean(axis=(1, 2)).std(ddof=1)
    return [f"{each:.1f}" for each in (over_splits, over_runs, between)]


def trained_trunk(data: str, study: Kept) -> list[str]:
    head = kept(CELLS[BEST].format(data))
    order = [study.mean(loss) for loss in TRUNK]
    kinds = [fmean(study.mean(loss) for loss in TRUNK if loss in kind) for kind in (PAIRS, CLASSES)]
    tau = None if head is None else kendalltau([head.mean(loss) for loss in TRUNK], order).statistic
    return [
        *(f"{study.mean(method):.1f} / {study.mean(method, P1):.1f}" for method in (FEATURES, *TRUNK)),
        interval([study.mean(f"{loss}_averaged") - study.mean(loss) for loss in TRUNK]),
        f"{kinds[0] - kinds[1]:+.1f}",
        f"{stdev(order):.1f}",
        "not run" if tau is None else f"{tau:+.2f}",
    ]


def caps_and_bounds() -> str:
    lines = []
    for data, title in SETS.items():
        for cell in (DONE, BEST):
            study = kept(CELLS[cell].format(data))
            if study is not None:
                at_cap, trainings, bounds = study.ends()
                before = f"; {Kept(study.archives[:1], []).ends()[0]} reached the first cap, 4,000 steps"
                first = before if len(study.archives) > 1 else ""
                lines.append(f"- {title}, {cell}: {at_cap} of {trainings} trainings reached the cap{first}.")
                lines += [f"  - {advice.partition(' of its space')[0]}" for advice in bounds]
    return "\n".join(lines)


def answers() -> str:
    """All tables, in the order of the questions."""
    signs = by_cell(
        "**1.** The mean of the four pair losses less that of the four class-weight losses, points of MAP@R ± half a "
        "95% interval over runs",
        lambda _, each: interval(pair_less_class(each)),
    )
    counts = by_cell(
        "**3.** Losses, of eight, whose mean is above the untrained features in MAP@R / in P@1 (counts, not tests)",
        lambda data, each: f"{above_features(data, each, MAP)} / {above_features(data, each, P1)}",
    )
    times = table(list(SETS.values()), {"times": [str(evaluations(data)) for data in SETS]})
    searches = of_kept("converged_{}_pca_again", ["second search less first"], search_noise)
    splits = of_kept("splits_{}", ["over splits", "over runs", "between losses"], split_noise)
    trunks = of_kept("trunk_{}", HEAD_OF_TRUNK, trained_trunk)
    searches_of_cells = by_cell(
        "The smallest and the largest difference, if any kept search of a loss may replace the first (for ProxyNCA and "
        "the normalised softmax, each other's). The ± above hold for other seeds only",
        lambda _, each: " to ".join(map(signed, over_searches(each))),
    )
    over = (
        "Over contrastive, until done from the PCA, points of MAP@R; `shown` by Holm's correction over 28 pairs. In "
        "the last column contrastive, multi-similarity and ArcFace have their second search"
    )
    change = "Mean change over the eight losses (smallest to largest), and standard deviation between them, points"
    sentence = (
        "**The sentence** is not shown. Mean change of the losses by each factor / standard deviation between them "
        "(the larger of the two cells), points of MAP@R; `yes` if the change is larger"
    )
    parts = [
        f"{sentence}\n\n{the_sentence()}",
        CONCLUSION,
        signs,
        searches_of_cells,
        f"**2.** {over}\n\n{beats_contrastive()}",
        counts,
        f"**4.** {change}\n\n{changes()}",
        f"**5.** Two searches of one loss, points of MAP@R\n\n{searches}",
        by_cell(
            "ProxyNCA is the normalised softmax with T = 1/(2k), so these are two searches of one loss too: ProxyNCA "
            "less normalised softmax, points of MAP@R",
            lambda _, each: signed(proxy_nca_less_softmax(each)),
        ),
        f"**6.** Standard deviations of a loss's score less the mean of four losses, points\n\n{splits}",
        f"**7 and 8.** The trunk trained, MAP@R / P@1 in percent\n\n{trunks}",
        OF_TRUNKS,
        f"**Evaluations** of the test classes\n\n{times}",
        f"**Trainings** at the cap, and settings at a bound of their space\n\n{caps_and_bounds()}",
    ]
    return "\n\n".join(parts)


def gains(study: Kept | None, losses: Sequence[str], features: float) -> dict[str, float]:
    """Loss to its mean MAP@R less that of the untrained features, points; empty without the study."""
    return {} if study is None else {loss: study.mean(loss) - features for loss in losses if study.runs(loss)}


def draw(path: Path) -> None:
    """One panel for each set: each loss's gain over the untrained features, by start, length and trained trunk."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "levelfield", "font.size": 9})
    import matplotlib.pyplot as plt

    heads = [*CELLS, "trunk trained"]
    figure, panels = plt.subplots(1, len(SETS), figsize=(2.3 * len(SETS), 3.4), layout="constrained")
    for axes, (data, title) in zip(panels, SETS.items(), strict=True):
        untrained, trunk = kept(data), kept(f"trunk_{data}")
        assert untrained is not None
        features = untrained.mean(FEATURES)
        found = [gains(kept(name.format(data)), LOSSES, features) for name in CELLS.values()]
        found.append(gains(trunk, TRUNK, trunk.mean(FEATURES) if trunk else features))
        for loss in LOSSES:
            places = [place for place, each in enumerate(found) if loss in each]
            colour = "tab:blue" if loss in PAIRS else "tab:orange"
            axes.plot(places, [found[place][loss] for place in places], "o-", color=colour, lw=0.6, ms=3, alpha=0.8)
        axes.axhspan(-luck(data), luck(data), color="0.9", lw=0)
        axes.axhline(0, color="black", lw=0.8)
        axes.set_title(title, fontsize=9)
        axes.set_xticks(range(len(heads)), heads, rotation=60, ha="right", fontsize=8)
        axes.set_xlim(-0.4, len(heads) - 0.6)
    panels[0].set_ylabel("MAP@R less untrained features, points")
    marks = [plt.Line2D([], [], color=colour, marker="o", ms=3) for colour in ("tab:blue", "tab:orange")]
    marks.append(plt.Rectangle((0, 0), 1, 1, color="0.9"))
    names = ["pair losses", "class-weight losses", "largest difference of two searches of one loss"]
    figure.legend(marks, names, fontsize=8, loc="outside upper right", ncols=3)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    draw(RESULTS / "answers.svg")
    page = RESULTS / "questions.md"
    page.write_text(page.read_text().partition(MARK)[0] + f"{MARK}\n\n{answers()}\n")


if __name__ == "__main__":
    main()
