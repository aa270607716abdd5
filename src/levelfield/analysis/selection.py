"""The result of the search for each method, for the report."""

from dataclasses import dataclass
from typing import Any

from levelfield.analysis.written_config import class_name
from levelfield.study.folder import StudyFolder
from levelfield.study.suggest import at_bound


@dataclass(frozen=True)
class Selection:
    """The selected setting of a method.

    Args:
        trial: The best trial, from 0; None without a search, or if no trial has a score.
        parameters: Its arguments, dotted key to value.
        value: Mean over folds of the best validation score, MAP@R as a fraction.
        advice: One sentence for each argument at a bound of its space.
        failures: One sentence for each trial that failed.
    """

    method: str
    trial: int | None
    parameters: dict[str, Any]
    value: float | None
    advice: list[str]
    failures: list[str]


def selected(study: StudyFolder) -> dict[str, Selection]:
    """The selection of each method so far."""
    spec, state = study.spec, study.state
    failures = state.failures("trial")
    found = {}
    for method in spec.methods:
        best, own = state.chosen(method), [(job, why) for job, why in failures.items() if job.method == method]
        failed = [f"{job.stage} {job.number} fold {job.fold}: {why}" for job, why in own]
        if best is None:
            found[method] = Selection(method, None, {}, None, [], failed)
        else:
            advice = at_bound(spec.space(method), best.parameters)
            found[method] = Selection(method, best.number, best.parameters, best.value, advice, failed)
    return found


def said_value(value: Any) -> str:
    """`0.00514` or `Adam`: a short number, or the name of a class."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:.4g}"
    is_class = isinstance(value, str) or (isinstance(value, dict) and "class_path" in value)
    return class_name(value) if is_class else str(value)


def search_lines(study: StudyFolder) -> list[str]:
    """Lines on each method's search: best trial, values at bounds, failed trials and failed runs."""
    lines, spec, state = [], study.spec, study.state
    for method, selection in selected(study).items():
        if selection.trial is not None:
            parameters = selection.parameters.items()
            setting = ", ".join(f"{key.rpartition('.')[2]} {said_value(value)}" for key, value in parameters)
            lines.append(f"{method}: best of {spec.trials(method)} trials is number {selection.trial}: {setting}")
        lines += [f"{method}: {sentence}" for sentence in (*selection.advice, *selection.failures)]
    lines += [f"{method}: no trial had a score, so it has no runs" for method in state.without_setting()]
    return [
        *lines,
        *(f"{job} failed and is left out with its run: {why}" for job, why in state.failures("run").items()),
    ]
