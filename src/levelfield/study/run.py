"""Runs a study: the jobs that are to do, here or in worker processes, then the test stage; it ends with results."""

import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from jaxtyping import Int
from rich.console import Console

from levelfield.data.datamodule import MetricDataModule
from levelfield.errors import UserError
from levelfield.storage.atomic import write_atomically
from levelfield.storage.lock import LOCKS, Lock
from levelfield.storage.lock_kind import check_locks
from levelfield.storage.provenance import provenance
from levelfield.study.definition.spec import BASELINE, STUDY, StudySpec, is_baseline
from levelfield.study.environment import check_environment
from levelfield.study.execution.executor import Executor
from levelfield.study.execution.executors.local import Local
from levelfield.study.execution.group import refuse_to_be_one_of_many
from levelfield.study.execution.worker import fixed_threads
from levelfield.study.jobs.job import Job, job_config
from levelfield.study.jobs.state import first_config
from levelfield.study.progress import StudyProgress
from levelfield.study.record import StudyRecord
from levelfield.study.same_study import MethodsAdded, check_same_study
from levelfield.study.sealed_test.opening import open_test_classes
from levelfield.study.tested import check_ledger
from levelfield.training.build import TrainingCLI, build
from levelfield.training.kept_parts import KeptParts
from levelfield.training.learner import MetricLearner
from levelfield.training.objective import objective


def run_study(
    record: StudyRecord,
    console: Console | None = None,
    reopen: str | None = None,
    executor: Executor | None = None,
    mixed_versions: bool = False,
    without_failed_runs: bool = False,
    machine: TextIO | None = None,
) -> StudyRecord:
    """Begin a study, join another process that runs it, or continue it where it stopped.

    A job with a `result.json` is done; any other is done from its last good state. What a job is given depends on the
    results alone, so a study that was killed or shared on a machine ends with the same bytes as one that was not
    (docs/reproducibility.md).

    Args:
        record: The study; it must be the one that its folder was begun with, or that one with methods added.
        reopen: Why the test classes are opened another time.
        executor: Who does the jobs; by default `Local()`, with as many processes as its `auto` says.
        mixed_versions: Whether to go on though other versions, or another kind of device, computed what is done.
        without_failed_runs: Open the test classes though runs failed, and leave those out.
        machine: Where each job that ends is told as a line of JSON.

    Returns:
        The study as it ended: with the methods that others added while it ran.

    Raises:
        UserError: another study lies in the folder, or a setting, the data or a result is not usable; a launcher has
            started this process as one of several; jobs are left that processes die over; or runs failed.
    """
    refuse_to_be_one_of_many()
    console, executor = console or Console(), executor or Local()
    while True:
        try:
            with fixed_threads(record.spec.threads), executor.ready(record) as do_jobs:
                begin(record, reopen, mixed_versions, console)
                seconds = {job: result["seconds"] for job, result in record.state.results.items()}
                workers = executor.side_by_side(record)
                with StudyProgress(console, record.spec.name, record.state, seconds, workers, machine) as progress:
                    do_jobs(record, progress)
                    progress.start("test")
                    with Lock(record.folder, "test", "test"):
                        helped = partial(executor.testing, record)
                        open_test_classes(record, reopen, progress, helped, mixed_versions, without_failed_runs)
            return record
        except MethodsAdded as added:
            console.print(f"{added}: added while this study ran; done here too", highlight=False, markup=False)
            now = StudyRecord.begun(record.folder).spec
            methods = {**now.methods, **record.spec.methods}  # ours say where the data lie
            record = StudyRecord(record.folder, replace(now, methods=methods).with_own_code())


def begin(
    record: StudyRecord, reopen: str | None = None, mixed_versions: bool = False, console: Console | None = None
) -> None:
    """Write `study.yaml`, after a look at everything that can be wrong before a job is begun.

    Raises:
        UserError: see `run_study`.
    """
    folder, path = record.folder, record.definition_file
    if not path.exists() and folder.exists() and any(map(_is_foreign, folder.iterdir())):
        raise UserError(f"{folder} is not empty and holds no {STUDY}; choose another --output")
    _refuse_another_study(record, reopen)
    check_ledger(record)
    if record.read_again().to_do:
        data, origins = check_methods(record.spec)
        record.check_data(data.identity())
        check_environment(record, origins.items(), mixed_versions)
        if console is not None:
            console.print("\n".join(data.overview()), highlight=False, markup=False, soft_wrap=True)
    check_locks(folder / LOCKS)
    with Lock(folder, "study", "study"):  # two that begin at once
        _refuse_another_study(record, reopen)
        write_atomically(path, record.spec.to_yaml().encode())


def _is_foreign(entry: Path) -> bool:
    """Whether a file is not what another process that begins this study is just writing."""
    return entry.name not in (LOCKS, STUDY) and not entry.name.startswith(".")


def _refuse_another_study(record: StudyRecord, reopen: str | None) -> None:
    if record.definition_file.exists():
        check_same_study(record)
        begun = StudyRecord.begun(record.folder).spec
        if reopen is None and record.spec.configuration_hash() != begun.configuration_hash():
            record.ledger.refuse_reopening()


def check_methods(spec: StudySpec) -> tuple[MetricDataModule, dict[str, dict[str, Any]]]:
    """Build every method and read the data's index once, so that a mistake shows before anything is computed.

    Returns:
        The data, which all methods share; and of each method, and the baseline, what its results will say of their
        origin.

    Raises:
        UserError: a method that cannot be built, a loss of one's own that gives none, or a data set that could not be
            trained on or, in the end, tested.
    """
    origins, datamodules, own, kept = {}, list[MetricDataModule](), list[TrainingCLI](), KeptParts()
    with tempfile.TemporaryDirectory() as folder:
        for method in spec.methods:
            if spec.whole_half and spec.trials(method):  # the runs take other settings than the trials
                build(job_config(spec, Job(method, "run", 0, 0), {}), Path(folder), progress=False, kept=kept)
            training = build(first_config(spec, method), Path(folder), progress=False, kept=kept)
            origins[method] = provenance(training.trainer, training.model)
            if not is_baseline(method):
                datamodules.append(training.datamodule)
            if method in spec.own_code and type(training.model).training_step is MetricLearner.training_step:
                own.append(training)
        training.datamodule.check_test_half()
        training.datamodule.identity()
        assert training.datamodule.train_subset is not None
        for datamodule in datamodules:
            datamodule.training_batches(training.datamodule.train_subset.labels)
        for mine in own:
            _try_loss(mine, training.datamodule.train_subset.labels)
        return training.datamodule, {BASELINE: origins[next(iter(spec.methods))], **origins}


def _try_loss(training: TrainingCLI, labels: Int[np.ndarray, " samples"]) -> None:
    """Call one's own loss once, on noise, before its method becomes part of a study.

    On the CPU, for a GPU may be the workers' own; what fails there may do without, where a GPU trains.

    Raises:
        UserError: it gives no number, or one without a gradient.
    """
    learner = training.model
    batch = labels[next(iter(training.datamodule.training_batches(labels)))]
    with torch.random.fork_rng(devices=[]):
        learner.build_loss(len(np.unique(labels)))
        learner.check_parts()
        embeddings = torch.nn.functional.normalize(torch.randn(len(batch), learner.embedding_size)).requires_grad_()
        try:
            objective(learner, embeddings, torch.from_numpy(batch))
        except UserError:
            raise
        except (torch.OutOfMemoryError, MemoryError):
            pass  # of this moment: a job that lacks memory is tried again
        except Exception:
            if training.trainer.strategy.root_device.type == "cpu":
                raise
