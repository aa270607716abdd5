"""The state of a study, from its results only: finished jobs, the next jobs and their settings.

Every answer is a function of the spec and the results, independent of their order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from levelfield.core.configuration import Config
from levelfield.study.jobs import Job, failed, folds_of, job_config, row_runs, study_jobs
from levelfield.study.search_space import configured
from levelfield.study.spec import OF, StudySpec
from levelfield.study.suggest import Trial, best_trial, suggest


class StudyState:
    """The finished jobs of a study and what follows.

    Attributes:
        jobs: All jobs, in order.
        results: Content of the `result.json` of each finished job; `add` adds to this mapping.
        suggested: (row, trial) to its setting from the search, as far as known.
    """

    def __init__(self, spec: StudySpec, results: dict[Job, dict[str, Any]]) -> None:
        self.spec, self.jobs, self.results = spec, study_jobs(spec), results
        self.suggested: dict[tuple[str, int], dict[str, Any]] = {}
        self._unfinished = dict.fromkeys(self.jobs)
        self._trials: dict[str, list[Trial]] = {row: [] for row in spec.methods}
        for job, result in list(results.items()):
            self.add(job, result)

    def add(self, job: Job, result: dict[str, Any]) -> None:
        """Add the result of a job, in constant time."""
        self.results[job] = result
        self._unfinished.pop(job, None)
        if job.stage == "trial":
            self.suggested.setdefault((job.method, job.number), result["parameters"])
            ended = self._trials[job.method]
            while len(ended) < self.spec.trials(job.method) and (trial := self._trial(job.method, len(ended))):
                ended.append(trial)

    def _trial(self, row: str, number: int) -> Trial | None:
        """A trial; None until all its folds are finished."""
        jobs = folds_of(self.spec, row, number, "trial")
        if not self.results.keys() >= {*jobs}:
            return None
        results = [self.results[job] for job in jobs]
        failure = next((result["failure"] for result in results if failed(result)), None)
        value = None if failure else fmean(result["validation"][self.spec.selected_by] for result in results)
        return Trial(number, results[0]["parameters"], value, failure)

    @property
    def to_do(self) -> list[Job]:
        """Remaining jobs, without the runs of a row if no trial of it has a score."""
        without = set(self.without_setting())
        return [job for job in self._unfinished if job.stage != "run" or job.method not in without]

    def ready(self) -> Iterator[Job]:
        """Jobs that can start now, in order; the setting of a trial may not be suggested yet."""
        return (job for job in self.to_do if self._is_ready(job))

    def _is_ready(self, job: Job) -> bool:
        if job.method in self.spec.derived:
            return replace(job, method=self.spec.derived[job.method][OF]) in self.results
        return len(self.trials(job.method)) >= self._awaited(job)

    def _awaited(self, job: Job) -> int:
        """The number of trials of its row that must finish before a job."""
        if job.stage == "run":
            return self.spec.trials(job.method)
        return job.number - job.number % self.spec.search.batch

    def parameters(self, job: Job) -> dict[str, Any] | None:
        """The setting of a job that is ready; None if `setting` must be called."""
        if job.stage == "trial":
            return self.suggested.get((job.method, job.number))
        best = self.chosen(job.method)  # None if the row is not searched
        return {} if best is None else best.parameters

    def trials_before(self, job: Job) -> list[Trial]:
        """The finished trials by which `setting` chooses that of a job that is ready."""
        return self.trials(job.method)[: self._awaited(job)]

    def trials(self, row: str) -> list[Trial]:
        """The finished trials of a row, up to the first unfinished one."""
        return self._trials.get(row, [])

    def chosen(self, row: str) -> Trial | None:
        """The best trial so far, whose setting the runs get; None if no trial has a value."""
        return best_trial(self.trials(row))

    def without_setting(self) -> list[str]:
        """Rows without runs, because no trial has a score."""
        ended = [row for row, trials in self._trials.items() if trials and len(trials) == self.spec.trials(row)]
        without = [row for row in ended if self.chosen(row) is None]
        return [*without, *(row for row, made in self.spec.derived.items() if made[OF] in without)]

    def failures(self, stage: str) -> dict[Job, str]:
        """Failed trials or runs with their reasons, in the order of the jobs."""
        found = [(job, self.results[job]) for job in self.jobs if job.stage == stage and job in self.results]
        return {job: result["failure"] for job, result in found if failed(result)}

    def tested_runs(self) -> list[tuple[str, int]]:
        """Every (row, run) that has a model for each fold."""
        models = {job for job, result in self.results.items() if not failed(result)}
        return [each for each in row_runs(self.spec) if models.issuperset(folds_of(self.spec, *each))]


def setting(spec: StudySpec, job: Job, finished: Sequence[Trial], tried: int = 0) -> dict[str, Any]:
    """The setting of a trial that follows from the finished ones; `tried` is for a unit of work."""
    space = spec.space(job.method)
    own = configured(space, spec.methods[job.method])
    return suggest(space, finished, job.number, spec.seed, job.method, spec.search.sampler, own)


def first_config(spec: StudySpec, row: str) -> Config:
    """The configuration of the first job of a row: of a trial if the row is searched."""
    job = Job(row, "trial" if spec.trials(row) else "run", 0, 0)
    return job_config(spec, job, setting(spec, job, []) if spec.trials(row) else {})
