"""Validation curves: the score after each epoch, one panel per method, one colour per fold."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, NamedTuple

from levelfield.analysis.shown_names import shown_names
from levelfield.analysis.verify import validation_scores
from levelfield.metrics.definitions import SELECTED_BY
from levelfield.report.figures import ReportFigure, Results
from levelfield.report.figures.style import INK, PALETTE, TITLE, small_panels, validation_axis, whole_numbers
from levelfield.study.jobs import METRICS_FILE, failed

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _draw(results: Results) -> "Figure | None":
    study, curves, names = results.study, defaultdict(list), shown_names(results.study.spec)
    score = study.spec.selected_by
    for job, result in study.state.results.items():
        if job.stage == "run" and study.spec.trains(job.method) and not failed(result) and result["validation"]:
            metrics = job.path / METRICS_FILE
            if metrics not in results.changed:
                curves[job.method].append(read_curve(study.folder / metrics, job.fold, result["best_epoch"], score))
    return validation_figure({names[row]: found for row, found in curves.items()}, score) if curves else None


FIGURE = ReportFigure(
    "Training",
    "Validation score after each epoch of every run, a panel a method",
    _draw,
    note="A dot is the checkpoint that was kept.",
)


class Curve(NamedTuple):
    """Validation scores of one training, and the epoch of the checkpoint that was kept."""

    fold: int
    epochs: list[int]
    scores: list[float]
    best: int


def read_curve(metrics: Path, fold: int, best_epoch: int, score: str = SELECTED_BY) -> Curve:
    """The validation scores in a job's `metrics.csv`, where epochs count from 0; in the curve from 1."""
    scores = validation_scores(metrics, score)
    return Curve(fold, [epoch + 1 for epoch in scores], list(scores.values()), best_epoch + 1)


def validation_figure(curves: Mapping[str, Sequence[Curve]], score: str = SELECTED_BY) -> "Figure":
    """One panel per method; a line is one training, its dot the checkpoint that was kept."""
    from matplotlib.lines import Line2D

    factor, label = validation_axis(score)
    figure, panels = small_panels(len(curves), 1.6, "epochs trained", label)
    folds = sorted({curve.fold for found in curves.values() for curve in found})
    colours = {fold: PALETTE[number % len(PALETTE)] for number, fold in enumerate(folds)}
    for axes, (method, found) in zip(panels, curves.items(), strict=True):
        axes.set_title(fill(method, TITLE))
        for curve in found:
            colour = colours[curve.fold]
            axes.plot(curve.epochs, [factor * s for s in curve.scores], color=colour, linewidth=0.9, alpha=0.7)
            kept = [(e, factor * s) for e, s in zip(curve.epochs, curve.scores, strict=True) if e == curve.best]
            axes.plot([e for e, _ in kept], [s for _, s in kept], "o", color=colour, markersize=3.5, mew=0)
        whole_numbers(axes)
    handles = [Line2D([], [], color=colours[fold], label=f"fold {fold}") for fold in folds]
    handles.append(Line2D([], [], color=INK, marker="o", markersize=3.5, linewidth=0, mew=0, label="kept"))
    figure.legend(handles=handles, loc="outside upper center", ncols=8, fontsize=8.5)
    return figure
