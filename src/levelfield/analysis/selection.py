"""The setting that the search chose for each method."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from levelfield.analysis.written_config import class_name
from levelfield.study.folder import StudyFolder
from levelfield.study.suggest import Trial, at_bound


class Selection(NamedTuple):
    """The search of a method so far.

    Args:
        trial: The best trial, whose setting the runs have; None without a search or without a trial that has a score.
        remarks: One sentence for each argument at a bound of its space, then one for each trial that failed.
    """

    trial: Trial | None
    remarks: list[str]


def selected(study: StudyFolder) -> dict[str, Selection]:
    """Method to its best setting so far."""
    found = {}
    for method in study.spec.methods:
        best = study.state.chosen(method)
        remarks = [] if best is None else at_bound(study.spec.space(method), best.parameters)
        for job, why in study.state.failures("trial").items():
            if job.method == method:
                remarks.append(f"trial {job.number} fold {job.fold}: {why}")
        found[method] = Selection(best, remarks)
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
