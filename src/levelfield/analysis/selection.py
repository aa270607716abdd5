"""The setting that the search chose for each method."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from levelfield.analysis.written_config import class_name
from levelfield.study.folder import StudyFolder
from levelfield.study.suggest import at_bound


@dataclass(frozen=True)
class Selection:
    """The setting of a method's runs.

    Args:
        trial: The best trial, from 0; None without a search or without a trial that has a score.
        parameters: Its arguments, dotted key to value.
        value: Its mean over folds of the best validation score, MAP@R as a fraction.
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
    """Method to its best setting so far."""
    spec, state = study.spec, study.state
    found = {}
    for method in spec.methods:
        failures = [
            f"{job.stage} {job.number} fold {job.fold}: {why}"
            for job, why in state.failures("trial").items()
            if job.method == method
        ]
        best = state.chosen(method)
        found[method] = Selection(method, None, {}, None, [], failures)
        if best is not None:
            advice = at_bound(spec.space(method), best.parameters)
            found[method] = Selection(method, best.number, best.parameters, best.value, advice, failures)
    return found


def setting_text(parameters: Mapping[str, Any]) -> str:
    """`loss.margin 23.2, loss_lr 0.00514`: numbers short, a class by its name."""

    def text(value: Any) -> str:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return f"{value:.4g}"
        is_class = isinstance(value, str) or (isinstance(value, dict) and "class_path" in value)
        return class_name(value) if is_class else str(value)

    return ", ".join(f"{short_key(key)} {text(value)}" for key, value in parameters.items())


def short_key(key: str) -> str:
    """`loss.margin` of `model.loss.init_args.margin`."""
    return key.removeprefix("model.").replace("init_args.", "")
