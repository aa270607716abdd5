"""The answers of the A/A study: what `aa.yaml` announced, from results/aa/SET/REPLICATE/archive.tar.xz.

    python papers/aa/answers.py                                # prints them
    python papers/aa/answers.py --page papers/aa/README.md     # also into a page, and draws answers.svg beside it

All scores are points of separated embeddings on test classes. Shapes: S data sets, R replicates (2 c and 2 c + 1 are
the halves of cut c), L losses, 2 searches, T runs of a search.
"""

import csv
import io
import json
import tarfile
from collections import defaultdict
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float
from jsonargparse import auto_cli

from levelfield.analysis.statistics import LEVEL, holm, paired_comparison, swapped_halves_test, t_interval, t_test

AA = Path(__file__).resolve().parents[2] / "results/aa"
LOSSES = ("ntxent", "contrastive", "normalized_softmax", "arcface")
PAIRS = tuple(combinations(range(len(LOSSES)), 2))
ROWS = tuple(f"{loss}{search}" for loss in LOSSES for search in ("", "@2"))
UNTRAINED = {
    "the features": "pretrained[features]",
    "a PCA to 128": "pretrained",
    "a whitening to 128": "pretrained[whitening128]",
    "a whitening (added later)": "pretrained[whitening]",
}
MAP, P1 = "map_at_r", "precision_at_1"
POWER = 0.8

Scores = Float[np.ndarray, "R L 2 T"]
P = Float[np.ndarray, "R L"]  # p-values of no difference between A and A'
Means = dict[str, Float[np.ndarray, " R"]]  # of each row


class Study:
    """The scores of one data set. A cut of which a half is missing is left out.

    Args:
        lines: Of `results.csv`, with the number of the replicate.
        minutes: Of the trainings of the fastest replicate. Others shared their core.
    """

    def __init__(self, lines: Iterable[dict[str, str]], minutes: float = 0.0) -> None:
        self.minutes = minutes
        found: dict[tuple[str, ...], list[float]] = defaultdict(list)
        for line in lines:
            if line["embedding"] == "separated" and line["stage"] in ("run", "test"):
                key = line["stage"], line["metric"], line["method"], line["replicate"], line["run"]
                found[key].append(100 * float(line["value"]))
        self._means = {key: float(np.mean(folds)) for key, folds in found.items()}
        numbers = {int(key[3]) for key in found}
        self.replicates = [str(number) for number in sorted(numbers) if number ^ 1 in numbers]

    def runs(self, row: str, metric: str = MAP, stage: str = "test") -> Float[np.ndarray, "R T"]:
        """Of a row, the means over folds."""
        numbers = sorted({int(key[4]) for key in self._means if key[:3] == (stage, metric, row)})
        keys = [[(stage, metric, row, replicate, str(run)) for run in numbers] for replicate in self.replicates]
        return np.array([[self._means[key] for key in each] for each in keys])

    def means(self, metric: str = MAP, stage: str = "test") -> Means:
        rows = (*ROWS, *UNTRAINED.values())
        return {row: self.runs(row, metric, stage).mean(axis=1) for row in rows}

    @property
    def scores(self) -> Scores:
        return np.stack([self.runs(row) for row in ROWS], axis=1).reshape(len(self.replicates), len(LOSSES), 2, -1)


def read(folder: Path) -> Study:
    """The study of a data set, with an archive for each replicate."""
    lines, seconds = list[dict[str, str]](), list[float]()
    for archive in folder.glob("*/archive.tar.xz"):
        with tarfile.open(archive) as members:
            texts = {each.name: file.read().decode() for each in members if (file := members.extractfile(each))}
        rows = csv.DictReader(io.StringIO(texts["results.csv"]))
        lines += ({**row, "replicate": archive.parent.name} for row in rows)
        jobs = (json.loads(text) for name, text in texts.items() if name.endswith("/result.json"))
        seconds.append(sum(job.get("seconds", 0.0) for job in jobs))
    return Study(lines, min(seconds) / 60)


def over_runs(scores: Scores) -> tuple[P, P]:
    """Of a paired t-test over runs, without and with Holm's correction over the 10 pairs of a replicate."""
    again = paired_comparison(scores[:, :, 0, :, None], scores[:, :, 1, :, None]).p
    pairs = [paired_comparison(scores[:, a, 0, :, None], scores[:, b, 0, :, None]).p for a, b in PAIRS]
    return again, holm(np.concatenate([again, np.stack(pairs, axis=1)], axis=1))[:, : len(LOSSES)]


def over_searches(scores: Scores) -> tuple[P, P]:
    """Of a t-test with the variance of the other losses' searches, without and with Holm over the 4 losses."""
    gaps = np.subtract(*scores.mean(axis=3).transpose(2, 0, 1))  # A less A', which has twice the variance of a search
    squares = (gaps**2).sum(axis=1, keepdims=True) - gaps**2
    degrees = len(LOSSES) - 1
    p = np.vectorize(lambda gap, rest: t_test(gap, np.sqrt(rest / degrees), degrees)[2])(gaps, squares)
    return p, holm(p)


def over_replicates(scores: Scores) -> tuple[Bool[np.ndarray, " L"], Bool[np.ndarray, " L"]]:
    """Whether a t-test, and Alpaydin's F test of swapped halves, call the means of A and A' different."""
    gaps = np.subtract(*scores.mean(axis=3).transpose(2, 1, 0))  # (L, R)
    t = paired_comparison(gaps[:, :, None], np.zeros((len(LOSSES), 1, 1))).p
    return t < LEVEL, np.array([swapped_halves_test(each.reshape(-1, 2)) for each in gaps]) < LEVEL


def half_width(values: Float[np.ndarray, " R"], unknown: float = np.nan) -> float:
    """Half of a 95% t-interval; `unknown` where there are too few values for one."""
    half = t_interval([*values])
    return unknown if half is None else half


def interval(called: Bool[np.ndarray, "R L"]) -> tuple[float, float]:
    """95% interval of the rate over cuts, whose halves are not independent."""
    of_cuts = called.reshape(-1, 2 * called.shape[1]).mean(axis=1)
    half = half_width(of_cuts, unknown=np.inf)
    return max(0.0, of_cuts.mean() - half), min(1.0, of_cuts.mean() + half)


def rate(called: Bool[np.ndarray, "R L"]) -> str:
    """Of all cases of all sets."""
    low, high = interval(called)
    return f"{called.sum()} of {called.size} ({called.mean():.0%}, {low:.0%} to {high:.0%})"


def verdicts(of: Iterable[Scores]) -> dict[str, list[Bool[np.ndarray, "R L"]]]:
    """Whether each test in a replicate calls A and A' different, in all sets: without and with Holm's correction."""
    tests = {"t over runs": over_runs, "t with the variance of searches": over_searches}
    return {
        title: [np.concatenate(p) < LEVEL for p in zip(*map(test, of), strict=True)] for title, test in tests.items()
    }


def components(scores: Scores) -> dict[str, float]:
    """Variances by nested analysis of variance: cut and half, loss in a replicate, search, run; none below 0.

    With y = replicate + loss + loss in a replicate + search + run, the mean squares of balanced data have the
    expectations E = run; S = E + T search; I = S + 2 T interaction; R = I + 2 T L replicate.
    """
    R, L, _, T = scores.shape
    of_search, of_loss = scores.mean(axis=3), scores.mean(axis=(2, 3))
    of_replicate, means = of_loss.mean(axis=1), of_loss.mean(axis=0)
    rest = of_loss - of_replicate[:, None] - means + scores.mean()
    squares = {  # from the innermost
        "run": scores.var(axis=3, ddof=1).mean(),
        "search": T * of_search.var(axis=2, ddof=1).mean(),
        "loss in a replicate": 2 * T * (rest**2).sum() / ((R - 1) * (L - 1)),
        "cut and half": 2 * T * L * of_replicate.var(ddof=1),
    }
    sizes, below, found = (1, T, 2 * T, 2 * T * L), 0.0, {}
    for (name, square), size in zip(squares.items(), sizes, strict=True):
        found[name] = float(max(square - below, 0.0) / size)
        below = square
    return dict(reversed(found.items()))


def spread_of_difference(parts: dict[str, float], searches: int = 2, runs: int = 3) -> float:
    """Standard deviation, in a replicate, of the difference of two losses that are means of searches and runs."""
    return float(np.sqrt(2 * (parts["loss in a replicate"] + (parts["search"] + parts["run"] / runs) / searches)))


def pairs_of_losses(scores: Scores) -> list[tuple[str, float, float, float, float]]:
    """Each pair, its mean difference, half a t-interval over replicates, and Holm's p of F and t over 6 pairs."""
    means = scores.mean(axis=(2, 3))
    gaps = {f"{LOSSES[a]} less {LOSSES[b]}": means[:, a] - means[:, b] for a, b in PAIRS}
    by_f = holm(np.array([swapped_halves_test(gap.reshape(-1, 2)) for gap in gaps.values()]))
    by_t = holm(paired_comparison(each := np.array([*gaps.values()])[:, :, None], np.zeros_like(each)).p)
    found = zip(gaps.items(), by_f, by_t, strict=True)
    return [(name, float(gap.mean()), half_width(gap), float(f), float(t)) for (name, gap), f, t in found]


def chosen(study: Study) -> list[str]:
    """The trained row with the best validation score in each replicate."""
    means = study.means(stage="run")
    return [max(ROWS, key=lambda row: means[row][number]) for number in range(len(study.replicates))]


def gains(study: Study, metric: str) -> dict[str, Float[np.ndarray, " R"]]:
    """The chosen row less each untrained row, on the test classes."""
    means = study.means(metric)
    best = np.array([means[row][number] for number, row in enumerate(chosen(study))])
    return {name: best - means[row] for name, row in UNTRAINED.items()}


def needed(spread: float) -> tuple[float, float, float, float]:
    """The smallest difference that 10 replicates show with power 80%, and the replicates for 1 point: by t, and by F.

    With B = Σ (d_c1 + d_c2)² / 2 and W = Σ (d_c1 - d_c2)² / 2 over C cuts, Alpaydin's F is (B + W) / 2W. For normal d
    of mean δ, B/W has a noncentral F distribution, with C and C degrees of freedom and noncentrality 2 C δ² / variance.
    """
    from scipy.optimize import brentq
    from scipy.stats import f, ncf
    from statsmodels.stats.power import TTestPower

    def lacks(effect: float, cuts: int) -> float:
        most = 2 * f.isf(LEVEL, 2 * cuts, cuts) - 1
        return float(POWER - ncf.sf(most, cuts, cuts, 2 * cuts * effect**2))

    test = TTestPower()
    effect = test.solve_power(nobs=10, alpha=LEVEL, power=POWER)
    replicates = np.ceil(test.solve_power(effect_size=1 / spread, alpha=LEVEL, power=POWER))
    cuts = next(cuts for cuts in range(1, 10_000) if lacks(1 / spread, cuts) <= 0)
    return float(effect * spread), float(replicates), spread * brentq(lacks, 0.1, 10, args=(5,)), 2.0 * cuts


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [[*heads], *([*row] for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def answers(studies: dict[str, Study]) -> str:
    """All answers as Markdown, with the numbers of `aa.yaml`."""
    of = {name: study.scores for name, study in studies.items()}
    parts = {name: components(scores) for name, scores in of.items()}
    spreads = {name: spread_of_difference(each) for name, each in parts.items()}
    rates = [[title, *map(rate, called)] for title, called in verdicts(of.values()).items()]
    by_replicates = zip(("t", "F of swapped halves"), zip(*map(over_replicates, of.values()), strict=True), strict=True)
    rates += [[f"{t} over replicates", f"{np.sum(called)} of {np.size(called)}", ""] for t, called in by_replicates]
    scales = [[name, *(f"{v**0.5:.2f}" for v in parts[name].values()), f"{spreads[name]:.2f}"] for name in of]
    pairs = [
        [name, pair, f"{mean:+.1f} ± {half:.1f}", *("< 0.001" if each < 0.0005 else f"{each:.3f}" for each in p)]
        for name, scores in of.items()
        for pair, mean, half, *p in pairs_of_losses(scores)
    ]
    gained, below = list[list[str]](), list[str]()
    for name, study in studies.items():
        each = [gains(study, metric) for metric in (MAP, P1)]
        for row in UNTRAINED:
            gained.append([name, row, *(f"{g[row].mean():+.1f} ± {half_width(g[row]):.1f}" for g in each)])
        below.append(f"{(each[0]['the features'] < 0).sum()} of {len(study.replicates)}")
    cost = [[name, *(f"{n:.3g}" for n in (*needed(spreads[name]), study.minutes))] for name, study in studies.items()]
    shown = ("difference that 10 replicates show", "replicates for 1 point")
    costs = ["", *(f"{what}, {test}" for test in ("t", "F (added later)") for what in shown), "minutes of a replicate"]
    kinds = ["cut and half", "loss in a replicate", "search", "run"]
    compared = ["", "pair", "difference over replicates", "Holm's p of F", "of t (added later)"]
    untrained = ["", "untrained row", "MAP@R", "P@1"]
    called = ["test", "p < 0.05, of all cases (95% interval over cuts)", "Holm's p < 0.05"]
    return "\n\n".join(
        f"**{title}**\n\n{table(heads, rows)}\n"
        for title, heads, rows in (
            ("1. How often is a loss called different from itself?", called, rates),
            ("2. What makes a score vary? Standard deviations", ["", *kinds, "difference of two losses"], scales),
            ("3. Which losses are different?", compared, pairs),
            ("4. What does training gain? The loss that validation chooses, less", untrained, gained),
            ("5. In how many replicates does validation choose a loss below the features?", [*studies], [below]),
            ("6. How large must a difference be?", costs, cost),
        )
    )


def draw(studies: dict[str, Study], file: Path) -> None:
    """How often A and A' are called different, and the size of each of their differences beside those of two losses."""
    from levelfield.core.files import write_atomically
    from levelfield.report.figures.style import BLUE, VERMILION, new_figure, style, to_bytes

    tests = verdicts([study.scores for study in studies.values()]).items()
    rates = {
        f"{title}{holms}": called
        for title, both in tests
        for holms, called in zip((", p < 0.05", ", Holm"), both, strict=True)
    }
    with style():
        figure = new_figure(4.4)
        (top,), (bottom,) = figure.subfigures(2, squeeze=False, height_ratios=(1.5, 2.9))
        axes = top.subplots()
        for place, called in enumerate(rates.values()):
            axes.plot(np.multiply(100, interval(called)), [place, place], color=VERMILION)
            axes.plot(100 * called.mean(), place, "o", color=VERMILION)
        axes.axvline(100 * LEVEL, color="black", linewidth=0.8, linestyle=":")
        axes.set_yticks(range(len(rates)), rates)
        axes.set_ylim(len(rates) - 0.5, -0.5)
        axes.set_xlim(0, 100)
        axes.set_xlabel("a loss called different from itself, percent of cases, 95% interval over cuts; dotted: 5%")
        panels = bottom.subplots(1, len(studies), sharey=True, squeeze=False)[0]
        for axes, (name, study) in zip(panels, studies.items(), strict=True):
            means = study.scores.mean(axis=3)
            itself = np.abs(means[:, :, 0] - means[:, :, 1]).ravel()
            others = np.abs(np.stack([means[:, a, 0] - means[:, b, 0] for a, b in PAIRS])).ravel()
            for place, (sizes, colour) in enumerate(((itself, VERMILION), (others, BLUE))):
                spread = np.linspace(-0.3, 0.3, len(sizes))
                axes.plot(place + spread, np.sort(sizes), ".", color=colour, markersize=4)
            axes.set_xticks([0, 1], ["a loss, itself", "two losses"])
            axes.set_title(name)
        bottom.supylabel("size of a difference, MAP@R", fontsize=9)
        write_atomically(file, to_bytes(figure))


def main(*, page: Path | None = None) -> None:
    """Print the answers; or also put them into a page, between its two marks, and draw the figure beside it."""
    studies = {folder.name: read(folder) for folder in sorted(AA.iterdir()) if folder.is_dir()}
    print(found := answers(studies), end="")
    if page:
        before, mark, rest = page.read_text(encoding="utf-8").partition("<!-- printed -->\n")
        page.write_text(f"{before}{mark}{found}<!-- -->{rest.partition('<!-- -->')[2]}", encoding="utf-8")
        draw(studies, page.with_name("answers.svg"))


if __name__ == "__main__":
    auto_cli(main)
