"""How far each method of a study is: its jobs by stage, and the best setting so far."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from levelfield.metrics.table import SELECTED_BY
from levelfield.study.jobs.job import failed
from levelfield.study.jobs.state import StudyState


@dataclass
class StageStanding:
    """Jobs of a method in one stage."""

    jobs: int = 0
    done: int = 0
    failed: int = 0


@dataclass
class MethodStanding:
    """A method's jobs by stage, in order, and its best validation MAP@R so far, a fraction, with its setting.

    Where nothing is searched that is the mean of the runs that are done.
    """

    method: str
    stages: dict[str, StageStanding] = field(default_factory=dict)
    best: float | None = None
    setting: Mapping[str, Any] = field(default_factory=dict)


def method_standings(state: StudyState) -> list[MethodStanding]:
    """Each method of a study, in order."""
    found: dict[str, MethodStanding] = {}
    for job in state.jobs:
        stage = found.setdefault(job.method, MethodStanding(job.method)).stages.setdefault(job.stage, StageStanding())
        result = state.results.get(job)
        stage.jobs += 1
        stage.done += result is not None
        stage.failed += result is not None and failed(result)
    for method, standing in found.items():
        if state.spec.trials(method):
            best = state.chosen(method)
            if best is not None:
                standing.best, standing.setting = best.value, best.parameters
        else:
            scores = [result["validation"].get(SELECTED_BY) for result in _trained(state, method)]
            if scores and None not in scores:
                standing.best = fmean(scores)
    return list(found.values())


def _trained(state: StudyState, method: str) -> list[dict[str, Any]]:
    return [result for job, result in state.results.items() if job.method == method and not failed(result)]
