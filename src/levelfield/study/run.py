"""Run a study: its jobs on slots, then the evaluation on the test classes. It writes no tables."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rich.console import Console

from levelfield.core.errors import UserError
from levelfield.core.processes import launched_together, quick_imports
from levelfield.core.terminal import say
from levelfield.metrics.user_metric import user_metric
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import Job, Task, failed
from levelfield.study.lock import only_one
from levelfield.study.progress import duration, progress_line
from levelfield.study.same_study import Seen, Sources, check_same, row_sources, with_begun_rows
from levelfield.study.spec import one_pca
from levelfield.study.state import setting
from levelfield.study.workers import Here, Line, Scheduler, Slots, Unit

# Of a finished job, its result, and all jobs that have started: the number of folds from now on, once it is known.
Replan = Callable[[Job, Mapping[str, Any], Sequence[Job]], int | None]
SECONDS_A_LINE = 10.0  # between two lines on finished jobs


def run_study(
    study: StudyFolder,
    slots: Slots | None = None,
    console: Console | None = None,
    *,
    recompute: Collection[str] = (),
    reopen_test: str | None = None,
    stop_here: bool = False,
    debug: bool = False,
    replan: Replan | None = None,
) -> StudyFolder:
    """Begin a study, or continue it where it stopped, and score its runs on the test classes.

    A job with a `result.json` is finished; any other starts again. Jobs depend only on results, so a study that was
    killed and resumed ends with the same bytes as an uninterrupted one.

    Args:
        slots: Where jobs run; by default in this process.
        recompute, reopen_test, stop_here, debug, replan: As in `levelfield.Study.run`.

    Returns:
        The finished study, with all rows of its folder.

    Raises:
        UserError: another process runs the study, the folder has another study, a setting, the data or a result is
            wrong, jobs cannot be finished, or runs failed.
    """
    slots, line = slots or Here(), partial(say, console=console or Console())
    if (launched := launched_together()) is not None:
        raise UserError(f"{launched[0]} started this study as {launched[2]}: start one process only (srun --ntasks=1)")
    try:
        study.refuse_foreign()
        with only_one(study.folder):
            study = with_begun_rows(study)
            sources = row_sources(study.spec)
            decisions = check_same(study, sources, recompute)
            study.had_work = reopen_test is not None or not study.is_finished()
            if recompute and not decisions and not study.had_work:
                decisions = ["note: --recompute has no effect: no row is stale"]
            line(*decisions)
            if not study.had_work:
                study.write_spec()
                return study
            quick_imports()  # of torch, too, which a finished study does not need
            for name in study.spec.own_metrics:
                user_metric(name)  # fails before anything is computed
            from levelfield.study.first_look import look_at_rows
            from levelfield.study.seal import evaluate
            from levelfield.study.training_job import fixed_threads

            with fixed_threads(study.spec.threads):
                seen = None
                if study.state.to_do and not stop_here:
                    for slot in range(slots.number):
                        slots.ready(slot)  # workers start while the rows are checked
                    seen = look_at_rows(study.spec)
                    decisions = check_same(study, sources, recompute, seen)
                    line(*decisions, *seen.overview)
                study.write_spec()  # only if every row can be built
                if seen is not None:
                    jobs = _Jobs(study, sources, seen, slots.number, line, replan)
                    Scheduler(jobs.ready, jobs.add, slots, line, debug).run()
                elif stop_here and not study.state.tested_runs():
                    raise UserError(f"{study.folder}: no run is complete; leave --stop-here out")
                evaluate(study, slots, line, reopen_test, stop_here)
    finally:
        slots.stop()
    return study


class _Jobs:
    """The jobs of a study as units of work. Suggesting a trial's setting takes seconds, so it is a unit too."""

    def __init__(
        self, study: StudyFolder, sources: Sources, seen: Seen, workers: int, line: Line, replan: Replan | None
    ) -> None:
        self.study, self.state, self.workers, self.line, self.replan = study, study.state, workers, line, replan
        self.last_line = time.monotonic()
        made_by = {row: (sources[row], seen.data[row]["fingerprint"], seen.weights[row]) for row in sources}
        self.made_by = {**{one_pca(row): made for row, made in made_by.items()}, **made_by}  # more folds may add it
        self.units: dict[str, Unit] = {}

    def ready(self) -> Iterator[Unit]:
        for job in self.state.ready():
            parameters = self.state.parameters(job)
            if parameters is None and job.fold > 0:  # the setting is suggested once, for the first fold
                continue
            name = f"{job.method} trial {job.number}: suggest a setting" if parameters is None else str(job)
            if name not in self.units:
                self.units[name] = self._unit(name, job, parameters)
            yield self.units[name]

    def _unit(self, name: str, job: Job, parameters: dict[str, Any] | None) -> Unit:
        from levelfield.study.training_job import run_job

        spec, row = self.study.spec, job.method
        if parameters is None:
            return Unit(name, row, setting, (spec, job, self.state.trials_before(job)))
        return Unit(name, row, run_job, (Task(spec, self.study.folder, job, parameters, *self.made_by[row]),))

    def add(self, unit: Unit, value: Any) -> None:
        del self.units[unit.name]
        if unit.function is setting:
            self.state.suggested[unit.row, unit.arguments[1].number] = value
            return
        job = unit.arguments[0].job
        if job.fold < self.study.spec.folds_of(job.stage):  # it may have been left out since it started
            self.state.add(job, value)
            if failed(value) or not self.state.to_do or time.monotonic() - self.last_line > SECONDS_A_LINE:
                self.last_line = time.monotonic()
                self.line(progress_line(self.state, job, self.workers))
            self._plan_again(job, value)

    def _plan_again(self, job: Job, result: Mapping[str, Any]) -> None:
        running = [unit.arguments[0].job for unit in self.units.values() if isinstance(unit.arguments[0], Task)]
        folds = None if self.replan is None else self.replan(job, result, [*self.state.results, *running])
        if folds is None:
            return
        self.replan, before = None, self.study.spec
        if folds != before.folds:
            what = f"the first training took {duration(result['seconds'])}"
            self.line(f"{what}, so {folds} instead of {before.folds} folds fit the time")
            self.study.spec = replace(before, folds=folds)
            for row, now in self.study.spec.row_hashes.items():
                if now != before.row_hashes.get(row):  # as of a PCA for all folds together
                    self.study.remove_row(row)
            self.study.write_spec()
            self.state = self.study.read_again()
