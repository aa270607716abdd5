"""Where a study stands, from its results alone: what is done, what can be done next, with which setting."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from statistics import fmean
from typing import Any

from levelfield.metrics.table import SELECTED_BY
from levelfield.study.definition.configuration import Config
from levelfield.study.definition.spec import StudySpec, is_baseline
from levelfield.study.jobs.job import Job, failed, folds_of, job_config, study_jobs
from levelfield.study.search.suggest import Trial, best_trial, is_unpromising, suggest


class StudyState:
    """The finished jobs of a study and what follows from them.

    Every answer is a function of the definition and of the results, so all processes that share a study agree. A
    result that is added costs the same whether the study has forty jobs or four thousand.

    Args:
        ask: What suggests a trial's arguments, as `suggest` does.

    Attributes:
        results: Content of the `result.json` of each job that is done.
        every_job: All jobs that there can be, in order.
    """

    def __init__(self, spec: StudySpec, ask: Callable[..., dict[str, float]] = suggest) -> None:
        self.spec = spec
        self.results: dict[Job, dict[str, Any]] = {}
        self.every_job = study_jobs(spec)
        self._ask = ask
        self._parameters: dict[tuple[str, str, int], dict[str, Any]] = {}
        self._ended: dict[tuple[str, int], Trial] = {}
        # What follows from the first `_known` results.
        self._known = -1
        self._jobs: list[Job] = []
        self._to_do: dict[Job, None] = {}
        self._trials_ended: dict[str, int] = {}

    @property
    def jobs(self) -> list[Job]:
        """All jobs but those never done, as later folds of a pruned trial and runs of a method without a setting."""
        self._catch_up()
        return self._jobs

    @property
    def to_do(self) -> list[Job]:
        """Jobs that are not done."""
        self._catch_up()
        return list(self._to_do)

    def ready(self) -> Iterator[Job]:
        """Jobs to do whose setting is known, in order."""
        return (job for job in self.to_do if self._is_ready(job))

    def _catch_up(self) -> None:
        """Bring what follows from the results up to date with those that came since."""
        if self._known == len(self.results):
            return
        new = list(islice(self.results, max(self._known, 0), None))
        drops_jobs = self._known < 0 or len(self.results) < self._known
        for method in {job.method for job in new if job.stage == "trial"}:
            before = self._trials_ended.pop(method, 0)
            drops_jobs |= self.spec.search.prune or before < self._count_ended(method) == self.spec.trials(method)
        drops_jobs |= any(job.stage == "final" for job in new)
        self._known = len(self.results)
        if drops_jobs:
            self._trials_ended.clear()
            unsettled = self.without_setting()
            wanted = [job for job in self.every_job if job.stage != "run" or job.method not in unsettled]
            self._jobs = [job for job in wanted if not self._given_up(job)]
            self._to_do = dict.fromkeys(job for job in self._jobs if job not in self.results)
        for job in new:
            self._to_do.pop(job, None)

    def _count_ended(self, method: str) -> int:
        """How many trials of a method have ended before the first that has not."""
        if method not in self._trials_ended:
            numbers = range(self.spec.trials(method))
            open_trials = (number for number in numbers if self._trial(method, number) is None)
            self._trials_ended[method] = next(open_trials, len(numbers))
        return self._trials_ended[method]

    def parameters(self, job: Job) -> dict[str, Any]:
        """What the search gives a job that is ready, dotted key to value."""
        if is_baseline(job.method) or not self.spec.trials(job.method):
            return {}
        key = (job.method, job.stage, job.number)
        if key not in self._parameters:
            self._parameters[key] = self._search(job)
        return self._parameters[key]

    def _search(self, job: Job) -> dict[str, Any]:
        if job.stage == "run":
            best = self.chosen(job.method)
            assert best is not None
            return best.parameters
        if job.stage == "final":
            return self.candidates(job.method)[job.number].parameters
        for sibling in folds_of(self.spec, job.method, job.number, "trial"):
            if sibling in self.results:
                return self.results[sibling]["parameters"]
        first = self._first_of_batch(job.number)
        finished = [trial for trial in self.trials(job.method) if trial.number < first]
        space, search = self.spec.space(job.method), self.spec.search
        return self._ask(space, finished, job.number, self.spec.seed, job.method, search.sampler)

    def trials(self, method: str) -> list[Trial]:
        """The trials of a method that have ended."""
        found = (self._trial(method, number) for number in range(self.spec.trials(method)))
        return [trial for trial in found if trial is not None]

    def candidates(self, method: str) -> list[Trial]:
        """The trials that are trained again before one is chosen, the best first."""
        scored = [trial for trial in self.trials(method) if trial.value is not None]
        return sorted(scored, key=lambda trial: (-(trial.value or 0.0), trial.number))[: self.spec.search.final]

    def chosen(self, method: str) -> Trial | None:
        """The trial whose setting the runs have, or would have by now; None where none has a value.

        Of several that were trained again it is the one with the best mean of both scores, which is its value then.
        """
        if not self.spec.search.final or not self._settled(method):
            return best_trial(self.trials(method))
        return best_trial([self._with_both(method, rank, t) for rank, t in enumerate(self.candidates(method))])

    def _with_both(self, method: str, rank: int, trial: Trial) -> Trial:
        """A candidate with the mean of its two values; without a value where its second training failed."""
        scores = [self._score(job) for job in folds_of(self.spec, method, rank, "final")]
        again = [score for score in scores if score is not None]
        if len(again) < len(scores) or trial.value is None:
            return replace(trial, value=None)
        return replace(trial, value=fmean([trial.value, fmean(again)]))

    def _settled(self, method: str) -> bool:
        """Whether all has ended that a method's setting follows from."""
        if not self._search_ended(method):
            return False
        ranks = range(len(self.candidates(method)))
        return all(job in self.results for rank in ranks for job in folds_of(self.spec, method, rank, "final"))

    def without_setting(self) -> list[str]:
        """Methods whose trials have all ended without a score: they have no runs."""
        methods = [method for method in self.spec.methods if self.spec.trials(method) and self._settled(method)]
        return [method for method in methods if self.chosen(method) is None]

    def failures(self, stage: str) -> dict[Job, str]:
        """Failed trials, finals or runs with their reasons."""
        return {
            job: self.results[job]["failure"]
            for job in self.every_job
            if job.stage == stage and job in self.results and failed(self.results[job])
        }

    def tested_runs(self) -> list[tuple[str, int]]:
        """Every (method, run) that has a model a fold, the baseline first."""
        found = dict.fromkeys((job.method, job.number) for job in self.every_job if job.stage == "run")
        found |= dict.fromkeys((method, run) for run in range(self.spec.runs) for method in self.spec.trained_as)
        return [each for each in found if all(self._has_model(job) for job in folds_of(self.spec, *each))]

    def _has_model(self, job: Job) -> bool:
        return job in self.results and not failed(self.results[job])

    def _score(self, job: Job) -> float | None:
        result = self.results.get(job)
        return None if result is None or failed(result) else result["validation"][SELECTED_BY]

    def _trial(self, method: str, number: int) -> Trial | None:
        if (method, number) not in self._ended and (trial := self._collect(method, number)) is not None:
            self._ended[method, number] = trial
        return self._ended.get((method, number))

    def _collect(self, method: str, number: int) -> Trial | None:
        jobs = folds_of(self.spec, method, number, "trial")
        first = self.results.get(jobs[0])
        pruned = self._pruned(method, number)
        if first is None or not (pruned or all(job in self.results for job in jobs)):
            return None
        failure = next((why for job in jobs if (why := self.results.get(job, {}).get("failure"))), None)
        scores = [self._score(job) for job in jobs]
        complete = [score for score in scores if score is not None]
        value = fmean(complete) if len(complete) == len(jobs) and not pruned else None
        return Trial(number, first["parameters"], value, failure, pruned=pruned)

    def _pruned(self, method: str, number: int) -> bool:
        """Whether the trial's first fold is too low, or failed, for the others to be trained."""
        first = folds_of(self.spec, method, number, "trial")[0]
        if not self.spec.search.prune or first not in self.results:
            return False
        score = self._score(first)
        before = [self._score(replace(first, number=k)) for k in range(self._first_of_batch(number))]
        return score is None or is_unpromising(score, [other for other in before if other is not None])

    def _first_of_batch(self, trial: int) -> int:
        return trial - trial % self.spec.search.batch

    def _search_ended(self, method: str, before: int | None = None) -> bool:
        """Whether a method's trials, or those before number `before`, have ended."""
        self._catch_up()
        return self._count_ended(method) >= (self.spec.trials(method) if before is None else before)

    def _given_up(self, job: Job) -> bool:
        if job.stage == "final":  # fewer trials have a value
            return self._search_ended(job.method) and job.number >= len(self.candidates(job.method))
        return job.stage == "trial" and job.fold > 0 and self._pruned(job.method, job.number)

    def _is_ready(self, job: Job) -> bool:
        if is_baseline(job.method) or not self.spec.trials(job.method):
            return True
        if job.stage == "run":
            return self._settled(job.method)
        if job.stage == "final":
            return self._search_ended(job.method)
        if self.spec.search.prune and job.fold > 0 and Job(job.method, "trial", job.number, 0) not in self.results:
            return False
        return self._search_ended(job.method, before=self._first_of_batch(job.number))


def first_config(spec: StudySpec, method: str) -> Config:
    """The configuration of the first job of a method: a trial where it is searched."""
    job = Job(method, "trial" if spec.trials(method) else "run", 0, 0)
    return job_config(spec, job, suggest(spec.space(method), [], 0, spec.seed, method, spec.search.sampler))
