"""Figures and tables of the Reality Check that need no training, from its published numbers and from your studies."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from levelfield.analysis.results import EMBEDDING_KINDS, collect_rows, summarise
from levelfield.analysis.verify import changed_files, validation_scores
from levelfield.analysis.written_config import whole_config
from levelfield.core.errors import UserError
from levelfield.core.seeds import seed_of
from levelfield.metrics import partition_scores, retrieval_metrics
from levelfield.metrics.clustering import k_means
from levelfield.metrics.definitions import SHOWN_METRICS
from levelfield.report.figures.style import BLUE, FAINT, GREEN, INK, ORANGE, VERMILION, new_figure
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import METRICS_FILE, failed
from levelfield.study.spec import is_baseline
from papers.beside import dataset_name, papers_beside
from papers.drawing import DATASETS, Drawing, Records, draw_two_orders, markdown_table
from papers.published import claims, papers, scores, searches

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Figure 3's caption excludes both baselines and the outlier.
LEFT_OUT = ("Pretrained", "Contrastive", "Triplet", "FastAP")
CLASSIC = ("Contrastive", "Triplet")


def table_scores(
    dataset: str, metric: str = "precision_at_1", embedding: str = "separated", batch_size: int = 32
) -> dict[str, float]:
    """A column of Tables 4 to 6 and 8: the mean of each method, a fraction.

    Args:
        dataset: `cub200`, `cars196` or `sop`.
        metric: `precision_at_1`, `r_precision` or `map_at_r`.
        embedding: `separated` or `concatenated`.
        batch_size: 32, or 256 on `cub200`.
    """
    return scores("reality_check", dataset, metric, embedding, {"data.batch_size": batch_size})


# Figure 1 and Table 3: what Recall@1, NMI and F1 hide, and MAP@R shows.

# Two classes on a strip of height 1: the left ends of each class's blocks, and the width of a block. The paper's points
# are in its image only; these fit what its text says about them.
BLOCKS: dict[str, tuple[tuple[tuple[float, ...], tuple[float, ...]], float]] = {
    "a": (((-3.0, -1.0), (0.0, 2.0)), 1.0),  # each class in two pieces, one of them touching the other class
    "b": (((-2.0,), (0.0,)), 2.0),  # each class in one piece; the two touch
    "c": (((-3.0,), (1.0,)), 2.0),  # each class in one piece, far from the other
}
POINTS_OF_A_CLASS = 1000
RETRIEVAL = ("precision_at_1", "r_precision", "map_at_r")
FIGURE1_TITLES = {
    "precision_at_1": "Recall@1",
    "nmi": "NMI",
    "f1": "F1",
    "r_precision": "R-precision",
    "map_at_r": "MAP@R",
}
# The values below the paper's panels are in its image only; this is what its text says about them.
FIGURE1_TEXT = {
    "precision_at_1": "nearly 100 in all",
    "nmi": "roughly equal in all",
    "f1": "roughly equal in all",
    "r_precision": "more informative than Recall@1",
    "map_at_r": "more informative than Recall@1",
}
# Table 3, percent. The key: which of the query's 10 nearest are of its class, which has 10 other samples.
TABLE3 = {(1,): (100, 10, 10), (1, 10): (100, 20, 12), (1, 2): (100, 20, 20), tuple(range(1, 11)): (100, 100, 100)}


def toy_embeddings(
    panel: str, points: int = POINTS_OF_A_CLASS
) -> tuple[Float[Tensor, "items 2"], Int64[Tensor, " items"]]:
    """Points in the plane, drawn uniformly from the blocks of two classes.

    Args:
        panel: `a`, `b` or `c` of Figure 1.
        points: Number for each class.

    Returns:
        (2 * points, 2) embeddings, which are not normalised, and their labels, 0 and 1.
    """
    blocks, width = BLOCKS[panel]
    draw = np.random.default_rng(seed_of("toy", panel))
    classes = []
    for lefts in blocks:
        left = np.repeat(lefts, points // len(lefts))
        classes.append(np.stack([left + width * draw.random(len(left)), draw.random(len(left))], axis=1))
    labels = torch.arange(2).repeat_interleave(len(classes[0]))
    return torch.tensor(np.concatenate(classes), dtype=torch.float32), labels


def toy_scores(panel: str, points: int = POINTS_OF_A_CLASS) -> dict[str, float]:
    """Precision@1 (their Recall@1), R-precision, MAP@R, NMI and F1 of a toy example, by Euclidean distance."""
    embeddings, labels = toy_embeddings(panel, points)
    found = retrieval_metrics(embeddings, labels, metrics=RETRIEVAL, distance="euclidean")
    clusters = k_means(embeddings, num_clusters=2, seed=0, method="exact")  # not normalised
    by_clusters = partition_scores(clusters, labels, metrics=("nmi", "f1"))
    return {**{name: float(found[name]) for name in RETRIEVAL}, **by_clusters}


def hypothetical_scores(correct: Sequence[int]) -> dict[str, float]:
    """The scores of one query of Table 3, whose class has 10 other samples.

    Args:
        correct: The places, from 1, of the samples of its class among its 10 nearest; its others are farther away.

    Returns:
        Precision@1, R-precision and MAP@R as fractions.

    Example:
        >>> round(hypothetical_scores((1, 10))["map_at_r"], 6)
        0.12
    """
    beyond = range(11, 21 - len(correct))
    labels = torch.tensor([int(place in correct or place in beyond) for place in range(1, 21)])
    gallery = torch.arange(1.0, 21.0)[:, None]  # on a line, so the place is the distance
    query, label = torch.zeros(1, 1), torch.ones(1, dtype=torch.long)
    found = retrieval_metrics(query, label, gallery, labels, metrics=RETRIEVAL, distance="euclidean")
    return {name: float(found[name]) for name in RETRIEVAL}


def figure1_lines(studies: Records) -> list[str]:
    """A row for each metric, a column for each panel, and what the paper says."""
    by_panel = {panel: toy_scores(panel) for panel in BLOCKS}
    rows = [
        [title, *(f"{100 * by_panel[panel][metric]:.1f}" for panel in BLOCKS), FIGURE1_TEXT[metric]]
        for metric, title in FIGURE1_TITLES.items()
    ]
    return markdown_table(["percent", *(f"({panel})" for panel in BLOCKS), "the paper's text"], rows)


def draw_figure1(studies: Records) -> "Figure":
    """The points of the three panels, each with its scores below."""
    figure = new_figure(1.95)
    for axes, panel in zip(figure.subplots(1, len(BLOCKS), sharex=True, sharey=True), BLOCKS, strict=True):
        embeddings, labels = toy_embeddings(panel)
        for label, colour in enumerate((BLUE, ORANGE)):
            points = embeddings[labels == label]
            axes.plot(points[:, 0], points[:, 1], ".", color=colour, markersize=1.6, mew=0)
        found = toy_scores(panel)
        axes.set_title(f"({panel})")
        axes.set_aspect(1.6)
        axes.set_xlabel("\n".join(f"{title} {100 * found[metric]:.1f}" for metric, title in FIGURE1_TITLES.items()))
        axes.set_xticks([])
        axes.set_yticks([])
    return figure


def table3_lines(studies: Records) -> list[str]:
    """A row for each set of correct places, with Recall@1, R-precision and MAP@R: ours and the paper's."""
    rows = []
    for correct, theirs in TABLE3.items():
        found = hypothetical_scores(correct)
        places = "all 10" if len(correct) == 10 else " and ".join(map(str, correct))
        ours = (f"{100 * found[metric]:.0f}" for metric in RETRIEVAL)
        rows.append([places, *(f"{here} ({there})" for here, there in zip(ours, theirs, strict=True))])
    return markdown_table(["correct of 10 retrieved", "Recall@1", "R-precision", "MAP@R"], rows)


# Figure 2: P@1 over the years, (a) as papers claim it and (b) as the Reality Check measured it.


class Point(NamedTuple):
    """A method in Figure 2: P@1, a fraction, against the year of its paper."""

    method: str
    year: int
    precision_at_1: float


def claimed_points(dataset: str) -> list[Point]:
    """Figure 2a: what papers report for their methods, as collected by Zhai and Wu 2019.

    The Reality Check's own collection is in its image only.
    """
    return [Point(claim.method, claim.year, claim.recall_at_1) for claim in claims(dataset)]


def measured_points(dataset: str) -> list[Point]:
    """Figure 2b: concatenated P@1 of each method against the year of its paper (Table 7)."""
    return _points(table_scores(dataset, embedding="concatenated"))


def study_points(study: StudyFolder) -> tuple[str | None, list[Point]]:
    """A study's points in Figure 2b: its data set (None for your own), and those of its methods that the paper has."""
    dataset = _study_dataset(study)
    return dataset, _points(study_scores(study, "concatenated", None if dataset in DATASETS else "cub200"))


def study_scores(study: StudyFolder, embedding: str, named_on: str | None = None) -> dict[str, float]:
    """A study's mean test P@1 by the paper's names of its methods; empty on a data set that is not in the paper.

    Args:
        named_on: A data set of the paper that gives the methods their names, for a study on another data set.
    """
    found = summarise(collect_rows(study))
    rows = {row.method: row.mean for row in found if (row.embedding, row.metric) == (embedding, "precision_at_1")}
    names = {
        counterpart.method: counterpart.result.method
        for paper in papers_beside(study, named_on)
        for counterpart in paper.counterparts
        if counterpart.result.paper == "reality_check"
    }
    return {name: rows[method] for method, name in names.items() if method in rows}


def figure2_lines(studies: Records) -> list[str]:
    """A row for each method of (b), a column for each data set; then the rows of studies."""
    measured = {dataset: {point.method: point for point in measured_points(dataset)} for dataset in DATASETS}
    found = markdown_table(
        ["P@1, concatenated, percent", "year", *DATASETS.values()],
        [
            [method, str(point.year), *(f"{100 * measured[name][method].precision_at_1:.2f}" for name in DATASETS)]
            for method, point in measured["cub200"].items()
        ],
    )
    for study in studies:
        if points := study_points(study)[1]:
            rows = [[point.method, str(point.year), f"{100 * point.precision_at_1:.2f}"] for point in points]
            found += ["", *markdown_table([f"study {study.spec.name}", "year", "P@1"], rows)]
    return found


def draw_figure2(studies: Records) -> "Figure":
    """Claims above, measurements below, a column for each data set; the points of studies are diamonds below.

    A study on another data set has its own column, with no claims above.
    """
    added = [(*study_points(study), study.spec.name) for study in studies]
    others = [(points, name) for where, points, name in added if where not in DATASETS and points]
    figure = new_figure(5.4)
    rows = figure.subplots(2, len(DATASETS) + len(others), sharex=True, sharey="col", squeeze=False)
    for column, (dataset, title) in enumerate(DATASETS.items()):
        _draw_points(rows[0][column], claimed_points(dataset), VERMILION, "o")
        _draw_points(rows[1][column], measured_points(dataset), BLUE, "o")
        for where, points, _ in added:
            if where == dataset and points:
                _draw_points(rows[1][column], points, GREEN, "D")
        rows[0][column].set_title(title)
    for column, (points, name) in enumerate(others, start=len(DATASETS)):
        rows[0][column].set_axis_off()
        rows[1][column].set_title(name)
        _draw_points(rows[1][column], points, GREEN, "D")
    for axes in rows[1]:
        axes.set_xlabel("year of the paper")
    rows[0][0].set_ylabel("(a) claimed P@1, percent")
    rows[1][0].set_ylabel("(b) measured P@1, percent")
    return figure


def _points(by_method: Mapping[str, float]) -> list[Point]:
    """The points of the methods whose year is in the Reality Check (Table 7)."""
    methods = papers()["reality_check"]["methods"]
    return [Point(name, methods[name]["year"], score) for name, score in by_method.items() if "year" in methods[name]]


def _study_dataset(study: StudyFolder) -> str | None:
    """The name of a study's data set; None for your own, and before the first job has written its settings."""
    config = whole_config(study.folder, next(iter(study.spec.methods)))
    return dataset_name(config["data"]["dataset"]["class_path"]) if config else None


def _draw_points(axes: "Axes", points: Sequence[Point], colour: str, marker: str) -> None:
    """Draw dots with the names of the lowest and the highest, and the mean of each year as a line."""
    axes.plot(
        [p.year for p in points], [100 * p.precision_at_1 for p in points], marker, color=colour, alpha=0.7, mew=0
    )
    years = sorted({p.year for p in points})
    means = [fmean(100 * p.precision_at_1 for p in points if p.year == year) for year in years]
    axes.plot(years, means, color=colour, linewidth=1, alpha=0.6)
    by_score = sorted(points, key=lambda point: point.precision_at_1)
    for extreme, above in ((by_score[0], False), (by_score[-1], True)):
        place = (extreme.year, 100 * extreme.precision_at_1)
        where: Any = {"ha": "center", "va": "bottom" if above else "top", "xytext": (0, 5 if above else -5)}
        axes.annotate(extreme.method, place, textcoords="offset points", fontsize=7.5, color=INK, **where)
    axes.margins(0.15, 0.2)


# Figure 3: relative improvement over the contrastive and the triplet loss.

BARS = (("claimed", FAINT), ("separated", GREEN), ("concatenated", VERMILION))


class Improvement(NamedTuple):
    """A group of bars in Figure 3: relative improvements of P@1 over a baseline, fractions.

    Args:
        name: The data set or the study.
        claimed: In the papers that Zhai and Wu collected, over the contrastive loss that they report; None if they
            report no such baseline.
        separated: Measured, 128 dimensions.
        concatenated: Measured, 512 dimensions.
    """

    name: str
    over: str
    claimed: float | None
    separated: float
    concatenated: float


def relative_improvement(by_method: Mapping[str, float], over: str) -> float:
    """Mean over methods, without `LEFT_OUT`, of (score / score of the method `over`) - 1, a fraction.

    Raises:
        ValueError: no method is left.

    Source: Musgrave et al. 2020, caption of Figure 3.

    Example:
        >>> by_method = {"Contrastive": 0.5, "MS": 0.6, "SNR": 0.55, "FastAP": 0.1}
        >>> round(relative_improvement(by_method, over="Contrastive"), 2)
        0.15
    """
    counted = [score for method, score in by_method.items() if method != over and method not in LEFT_OUT]
    if not counted:
        raise ValueError(f"no method but {over} and those left out has a score")
    return fmean(score / by_method[over] for score in counted) - 1


def improvements(over: str) -> list[Improvement]:
    """How much the methods improve on `Contrastive` (3a) or `Triplet`, claimed and measured, by data set."""
    found = []
    for dataset, title in DATASETS.items():
        measured = (relative_improvement(table_scores(dataset, embedding=kind), over) for kind in EMBEDDING_KINDS)
        reported = {claim.method: claim.recall_at_1 for claim in claims(dataset)}
        claimed = relative_improvement(reported, over) if over in reported else None
        found.append(Improvement(title, over, claimed, *measured))
    return found


def study_improvements(study: StudyFolder) -> list[Improvement]:
    """A study's bars over each classic loss, if it has this loss and others; named by the study."""
    by_kind = {embedding: study_scores(study, embedding) for embedding in EMBEDDING_KINDS}
    counted = {name for found in by_kind.values() for name in found if name not in LEFT_OUT}
    return [
        Improvement(
            study.spec.name, over, None, *(relative_improvement(by_kind[kind], over) for kind in EMBEDDING_KINDS)
        )
        for over in CLASSIC
        if counted and all(found.get(over) for found in by_kind.values())  # no relative improvement over 0
    ]


def figure3_lines(studies: Records) -> list[str]:
    """A row for each baseline and data set, a column for each kind of bar; then the rows of studies."""
    rows = [
        [f"over {over}, {found.name}", *map(_percent, (found.claimed, found.separated, found.concatenated))]
        for over in CLASSIC
        for found in improvements(over)
    ]
    rows += [
        [f"over {found.over}, study {found.name}", "-", _percent(found.separated), _percent(found.concatenated)]
        for study in studies
        for found in study_improvements(study)
    ]
    headings = ["relative improvement of P@1, percent", "claimed", "separated, 128", "concatenated, 512"]
    return markdown_table(headings, rows)


def draw_figure3(studies: Records) -> "Figure":
    """A panel for each baseline, a group of bars for each data set."""
    figure = new_figure(2.8)
    for axes, over in zip(figure.subplots(1, len(CLASSIC)), CLASSIC, strict=True):
        theirs = improvements(over)
        ours = [found for study in studies for found in study_improvements(study) if found.over == over]
        groups = [*theirs, *ours]
        for place, (kind, colour) in enumerate(BARS):
            heights = [(x, getattr(group, kind)) for x, group in enumerate(groups)]
            there = [(x + 0.27 * (place - 1), 100 * height) for x, height in heights if height is not None]
            bars = axes.bar([x for x, _ in there], [y for _, y in there], 0.25, color=colour, label=kind)
            axes.bar_label(bars, fmt="%+.1f", fontsize=7, padding=1)
        names = [*(group.name for group in theirs), *(f"study\n{group.name}" for group in ours)]
        axes.set_xticks(range(len(groups)), names)
        axes.axhline(0, color=INK, linewidth=0.8)
        axes.grid(axis="x", visible=False)
        axes.set_title(f"over {over}")
        axes.margins(y=0.15)
    figure.supylabel("relative improvement of P@1, percent", fontsize=9)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=8.5)
    return figure


def _percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{100 * fraction:+.1f}"


# Not in the paper: whether the methods that are best on the validation classes are best on the test classes.

PANELS = (("cub200", 32), ("cars196", 32), ("sop", 32), ("cub200", 256))


class Agreement(NamedTuple):
    """Validation and test scores of the methods on one data set.

    Args:
        validation: The validation MAP@R of each method's best trial, a fraction.
        test: The test score of each method, a fraction.
    """

    validation: dict[str, float]
    test: dict[str, float]
    spearman: float


def validation_against_test(
    dataset: str, metric: str = "map_at_r", embedding: str = "separated", batch_size: int = 32
) -> Agreement:
    """Compare the order of methods on validation and test classes; arguments as in `table_scores`, for the test.

    A method's validation score is the best of its 50 recorded trials. FastAP at batch size 32 has no recorded trials
    and is left out.

    Example:
        >>> round(validation_against_test("sop").spearman, 2)
        0.97
    """
    from scipy.stats import spearmanr  # the import takes a second

    methods = papers()["reality_check"]["methods"].items()
    names = {method["search"]: name for name, method in methods if "search" in method}
    validation = {
        names[search["loss"]]: search["val_map_at_r"]
        for search in searches()
        if (search["dataset"], search["batch_size"]) == (dataset, batch_size) and search["val_map_at_r"] is not None
    }
    of_test = table_scores(dataset, metric, embedding, batch_size)
    test = {method: of_test[method] for method in validation}
    return Agreement(validation, test, float(spearmanr(list(validation.values()), list(test.values())).statistic))


def validation_lines(studies: Records) -> list[str]:
    """A row for each data set: Spearman's correlation of validation MAP@R with each kind of test score."""
    rows = []
    for dataset, batch_size in PANELS:
        found = [
            validation_against_test(dataset, metric, embedding, batch_size)
            for embedding in ("separated", "concatenated")
            for metric in ("map_at_r", "precision_at_1")
        ]
        name = f"{DATASETS[dataset]}, batch {batch_size}"
        rows.append([name, str(len(found[0].test)), *(f"{agreement.spearman:.2f}" for agreement in found)])
    headings = ("MAP@R, separated", "P@1, separated", "MAP@R, concatenated", "P@1, concatenated")
    return markdown_table(["Spearman with the test's", "methods", *headings], rows)


def draw_validation(studies: Records) -> "Figure":
    """A panel for each data set: each method's line goes from its place by validation MAP@R to that by test MAP@R."""
    figure = new_figure(5.6)
    for axes, (dataset, batch_size) in zip(figure.subplots(2, 2).flat, PANELS, strict=True):
        agreement = validation_against_test(dataset, batch_size=batch_size)
        validation, test = (
            {method: 100 * score for method, score in by_method.items()}
            for by_method in (agreement.validation, agreement.test)
        )
        draw_two_orders(axes, validation, test, ("validation", "test"))
        axes.set_title(f"{DATASETS[dataset]}, batch {batch_size}: Spearman {agreement.spearman:.2f}")
    figure.supxlabel(
        "MAP@R, percent: best of 50 trials on the validation folds, and on the test classes (separated)", fontsize=9
    )
    return figure


# Section 3.2: how little noise a validation curve has.

AUTOCORRELATION = {"precision_at_1": "0.73", "map_at_r": "0.81"}


def lag_one_autocorrelation(curve: Sequence[float]) -> float:
    """sum_t (x_t - m)(x_{t+1} - m) / sum_t (x_t - m)^2, m the mean (Box and Jenkins, Time Series Analysis)."""
    deviations = np.subtract(curve, fmean(curve))
    return float(deviations[:-1] @ deviations[1:] / (deviations @ deviations))


def validation_autocorrelations(studies: Records) -> dict[str, tuple[float, int]]:
    """Lag-one autocorrelation of the validation curves of studies: how little noise a metric has from epoch to epoch.

    Args:
        studies: Studies with trained runs. Flat curves and those of fewer than three evaluations do not count.

    Returns:
        For each metric that validation logs: the mean over trainings, and their number.

    Raises:
        UserError: no training has a curve that counts.
    """
    found: dict[str, list[float]] = {metric: [] for metric in SHOWN_METRICS}
    for study in studies:
        changed = changed_files(study)
        for job, result in study.state.results.items():
            path = job.path / METRICS_FILE
            if is_baseline(job.method) or failed(result) or path in changed or not result["validation"]:
                continue
            for metric, values in found.items():
                curve = list(validation_scores(study.folder / path, metric).values())
                if len(curve) > 2 and max(curve) > min(curve):
                    values.append(lag_one_autocorrelation(curve))
    if not any(found.values()):
        names = ", ".join(str(study.folder) for study in studies)
        raise UserError(f"{names}: no training was validated three times or more; give studies of more epochs")
    return {metric: (fmean(values), len(values)) for metric, values in found.items() if values}


def autocorrelation_lines(studies: Records) -> list[str]:
    """A row for each metric: the mean over the studies' trainings, and the paper's."""
    found = validation_autocorrelations(studies) if studies else {}
    rows = []
    for metric, title in SHOWN_METRICS.items():
        mean, trainings = found.get(metric, (None, 0))
        theirs = AUTOCORRELATION.get(metric, "-")
        rows.append([title, "-" if mean is None else f"{mean:.2f}", str(trainings), theirs])
    return markdown_table(["lag-one autocorrelation", "studies", "trainings", "the paper's"], rows)


FIGURES = {
    "figure1": Drawing("What Recall@1, NMI and F1 hide", figure1_lines, draw_figure1),
    "figure2": Drawing("P@1 over the years, claimed and measured", figure2_lines, draw_figure2),
    "figure3": Drawing("Relative improvement over the classic losses", figure3_lines, draw_figure3),
    "table3": Drawing("Metrics on hypothetical results; the paper's in brackets", table3_lines),
    "validation_and_test": Drawing("Validation against test over methods", validation_lines, draw_validation),
    "autocorrelation": Drawing("How little noise a validation curve has", autocorrelation_lines),
}
