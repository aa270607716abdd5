"""Runs a study: the jobs that are to do, here or in worker processes, then the test stage; it ends with results."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from levelfield.data.datamodule import MetricDataModule
from levelfield.errors import UserError
from levelfield.storage.atomic import write_atomically
from levelfield.storage.ledger import Ledger
from levelfield.storage.lock import LOCKS, Lock
from levelfield.storage.lock_kind import check_locks
from levelfield.storage.provenance import provenance
from levelfield.study.definition.same_study import MethodsAdded, check_same_study
from levelfield.study.definition.spec import BASELINE, STUDY, StudySpec, spec_from_yaml
from levelfield.study.environment import check_environment
from levelfield.study.execution.group import refuse_to_be_one_of_many
from levelfield.study.execution.local_processes import Executor, WorkerPool, only_devices
from levelfield.study.execution.progress import StudyProgress
from levelfield.study.execution.worker import fixed_threads, work
from levelfield.study.jobs.job import Job, job_config
from levelfield.study.jobs.state import StudyState
from levelfield.study.sealed_test.opening import test_study
from levelfield.study.sealed_test.tested import check_ledger
from levelfield.study.search.suggest import suggest
from levelfield.training.build import build


def run_study(
    study_folder: Path,
    spec: StudySpec,
    console: Console | None = None,
    reopen: str | None = None,
    executor: Executor | None = None,
    mixed_versions: bool = False,
    without_failed_runs: bool = False,
) -> StudySpec:
    """Begin a study, join another process that runs it, or continue it where it stopped.

    A job with a `result.json` is done; any other is done from its last good state. What a job is given depends on the
    results alone, so a study that was killed or shared on a machine ends with the same bytes as one that was not
    (docs/reproducibility.md).

    Args:
        study_folder: Where everything is written.
        spec: The study; it must be the one that `study_folder` was begun with, or that one with methods added.
        console: Where progress is shown.
        reopen: Why the test classes are opened another time.
        executor: How many processes do the jobs; this one by default.
        mixed_versions: Whether to go on though other versions, or another kind of device, computed what is done.
        without_failed_runs: Open the test classes though runs failed, and leave those out.

    Returns:
        The study as it ended: with the methods that others added while it ran.

    Raises:
        UserError: another study lies in the folder, or a setting, the data or a result is not usable; a launcher has
            started this process as one of several; jobs are left that processes die over; or runs failed.
    """
    refuse_to_be_one_of_many()
    console, executor = console or Console(), executor or Executor()
    while True:
        try:
            _run(study_folder, spec, console, reopen, executor, mixed_versions, without_failed_runs)
            return spec
        except MethodsAdded as added:
            console.print(f"{added}: added while this study ran; done here too", highlight=False, markup=False)
            now = spec_from_yaml(study_folder / STUDY)
            spec = replace(now, methods={**now.methods, **spec.methods}).with_own_code()  # ours say where the data lie


def _run(
    study_folder: Path,
    spec: StudySpec,
    console: Console,
    reopen: str | None,
    executor: Executor,
    mixed_versions: bool,
    without_failed_runs: bool,
) -> None:
    with (
        only_devices(executor),
        fixed_threads(spec.threads),
        WorkerPool(study_folder, spec, executor) as pool,
    ):
        state = begin(study_folder, spec, reopen, mixed_versions, console)
        seconds = {job: result["seconds"] for job, result in state.results.items()}
        with StudyProgress(console, spec.name, state, seconds, executor.workers) as progress:
            if executor.workers == 1:
                work(state, progress, executor.checkpoint_seconds)
            else:
                pool.work(state, progress)
            progress.start("test")
            with Lock(study_folder, "test", "test"):
                test_study(study_folder, spec, reopen, progress, executor, mixed_versions, without_failed_runs)


def begin(
    study_folder: Path,
    spec: StudySpec,
    reopen: str | None = None,
    mixed_versions: bool = False,
    console: Console | None = None,
) -> StudyState:
    """Write `study.yaml`, after a look at everything that can be wrong before a job is begun.

    Raises:
        UserError: see `run_study`.
    """
    path = study_folder / STUDY
    if not path.exists() and study_folder.exists() and any(map(_is_foreign, study_folder.iterdir())):
        raise UserError(f"{study_folder} is not empty and holds no {STUDY}; choose another --output")
    state = _checked(study_folder, spec, reopen, mixed_versions, console)
    check_locks(study_folder / LOCKS)
    with Lock(study_folder, "study", "study"):  # two that begin at once
        _refuse_another_study(path, spec, reopen)
        write_atomically(path, spec.to_yaml().encode())
    return state


def _is_foreign(entry: Path) -> bool:
    """Whether a file is not what another process that begins this study is just writing."""
    return entry.name not in (LOCKS, STUDY) and not entry.name.startswith(".")


def _refuse_another_study(path: Path, spec: StudySpec, reopen: str | None) -> None:
    if path.exists():
        check_same_study(path, spec)
        if reopen is None and spec.configuration_hash() != spec_from_yaml(path).configuration_hash():
            Ledger(path.parent).refuse_reopening()


def _checked(
    study_folder: Path, spec: StudySpec, reopen: str | None, mixed_versions: bool, console: Console | None
) -> StudyState:
    """The study's state, after a look at everything that can be wrong before a job is begun."""
    _refuse_another_study(study_folder / STUDY, spec, reopen)
    check_ledger(study_folder, spec)
    state = StudyState(study_folder, spec)
    if state.to_do:
        data, origins = check_methods(spec)
        state.check_data(data.identity())
        check_environment(state, origins.items(), mixed_versions)
        if console is not None:
            console.print("\n".join(data.overview()), highlight=False, markup=False, soft_wrap=True)
    return state


def check_methods(spec: StudySpec) -> tuple[MetricDataModule, dict[str, dict[str, Any]]]:
    """Build every method and read the data's index once, so that a mistake shows before anything is computed.

    Returns:
        The data, which all methods share; and of each method, and the baseline, what its results will say of their
        origin.

    Raises:
        UserError: a method that cannot be built, or a data set that could not be trained on or, in the end, tested.
    """
    origins = {}
    with tempfile.TemporaryDirectory() as folder:
        for method in spec.methods:
            stage = "trial" if spec.trials(method) else "run"
            parameters = suggest(spec.space(method), [], 0, spec.seed, method)
            config = job_config(spec, Job(method, stage, 0, 0), parameters)
            training = build(config, Path(folder), progress=False)
            origins[method] = provenance(training.trainer, training.model)
        training.datamodule.check_test_half()
        training.datamodule.identity()
        return training.datamodule, {BASELINE: origins[next(iter(spec.methods))], **origins}
