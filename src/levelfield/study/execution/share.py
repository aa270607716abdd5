"""What a node of a cluster does of a study, and how the study's process follows what the nodes do."""

import os
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rich.console import Console

from levelfield.errors import UserError, refused_file
from levelfield.runtime.processes import LOOK_SECONDS, cores_here, end
from levelfield.storage.lock import LOCKS
from levelfield.storage.lock_kind import KIND, lock_kind
from levelfield.study.definition.spec import STUDY
from levelfield.study.execution.group import OF_A_LAUNCHER
from levelfield.study.execution.pool import DEATHS, Worker, environment, share_jobs, started
from levelfield.study.progress import StudyProgress
from levelfield.study.record import StudyRecord

# What a node's worker is told of the study's environment.
SETTINGS = ("LEVELFIELD_DATA", "LEVELFIELD_CACHE")
# What a file system that hosts share may take to show them a file that another has written.
FILE_SECONDS = 90
# A look at all jobs that are to do takes at most this part of the time.
LOOKING = 0.1


@dataclass
class Share:
    """A worker on a node, looked after there as on the study's own machine. It can be sent, and done again.

    Args:
        folder: The study's, on storage that all nodes see.
        what: As `pool.started` takes it.
        cpus: Cores of the node that are the worker's.
    """

    folder: Path
    what: tuple[str, ...]
    cpus: float
    study: int = field(default_factory=os.getpid)
    host: str = field(default_factory=socket.gethostname)
    working_directory: Path = field(default_factory=Path.cwd)
    settings: dict[str, str] = field(
        default_factory=lambda: {name: os.environ[name] for name in SETTINGS if name in os.environ}
    )

    def __post_init__(self) -> None:
        self.folder = self.folder.absolute()
        self.pool: list[Worker] = []

    def __call__(self) -> str:
        """Work until nothing is left to do.

        Returns:
            A mistake in words, where it is one that ended the work.
        """
        try:
            self._work()
        except (UserError, OSError) as error:
            mistake = refused_file(error) if isinstance(error, OSError) else error
            if mistake is None:
                raise
            return f"{mistake} (on {socket.gethostname()})"
        return ""

    def _work(self) -> None:
        record = self._record()
        here = environment(record.spec, max(1, round(cores_here() / max(self.cpus, 1))))
        here = {name: value for name, value in here.items() if name not in OF_A_LAUNCHER} | self.settings
        with started(record, [here], *self.what, study=self.study) as self.pool:
            if self.what[0] != "test":
                share_jobs(self.pool, record, _Said(record))
                return
            self.pool[0].begin()
            while self.pool[0].process.poll() is None:
                time.sleep(LOOK_SECONDS)

    def _record(self) -> StudyRecord:
        """The study, as this node sees it.

        Raises:
            UserError: it does not, or its locks would not hold here.
        """
        deadline = time.monotonic() + FILE_SECONDS
        while not (self.folder / STUDY).is_file() or not self.working_directory.is_dir():
            if time.monotonic() > deadline:
                raise UserError(
                    f"{self.folder} or {self.working_directory} is not there: the study's folder and the working "
                    "directory must lie on storage that all nodes share; choose another --output"
                )
            time.sleep(LOOK_SECONDS)
        os.chdir(self.working_directory)
        locks = self.folder / LOCKS
        if self.host != socket.gethostname() and lock_kind(locks).lease_seconds is None:
            raise UserError(
                f"{locks / KIND} names the system's locks, which hold on one host alone: stop what works in "
                f"{self.folder}, write the line 'lease 60' into that file and resume"
            )
        return StudyRecord.begun(self.folder)

    def stop(self) -> None:
        """Have the worker write its last state, and end it."""
        end([worker.process for worker in self.pool])


class _Said(StudyProgress):
    """Says what becomes of the worker; the study's process shows the jobs."""

    def __init__(self, record: StudyRecord) -> None:
        super().__init__(Console(file=sys.stderr, force_terminal=False), record.spec.name, record.state, {})

    def note_finished(self, jobs: object) -> None:
        pass


class Died(Exception):  # noqa: N818  # it says what happened to a share
    """A share ended with its node, or by itself, without a word of its own."""


class Handed(Protocol):
    """A share that a cluster has taken."""

    def said(self) -> str | None:
        """What the share returned; None as long as it works or waits for its turn.

        Raises:
            Died: it will return nothing.
        """


@dataclass
class _Place:
    """Where one share after the other is done: how often one died since the study had another result."""

    handed: Handed
    deaths: int = 0
    results: int = 0
    ended: bool = False


def follow(handed: list[Handed], again: Callable[[], Handed], record: StudyRecord, progress: StudyProgress) -> None:
    """Show what shares do until no job is left; one that dies is handed out again, to its place in the list.

    The results are read from the study's folder: what the cluster says of a share decides nothing else.

    Raises:
        UserError: what a share could not go on for, shares that die without doing a job, or results that stay away.
    """
    places = [_Place(each) for each in handed]
    deadline = time.monotonic() + FILE_SECONDS
    while True:
        looked = time.monotonic()
        progress.note_finished(record.refresh())
        took = time.monotonic() - looked
        if not record.state.to_do:
            return
        for number, place in enumerate(places):
            if not place.ended:
                _look_after(place, number, again, record, progress)
                handed[number] = place.handed
        if all(place.deaths == DEATHS for place in places):
            raise UserError(f"every worker died {DEATHS} times without a result; what they printed says why")
        if not all(place.ended for place in places):
            deadline = time.monotonic() + FILE_SECONDS
        elif time.monotonic() > deadline:
            raise UserError(
                f"no worker is left, and {len(record.state.to_do)} jobs are without a result here: do all nodes share "
                f"{record.folder}? Resume to do what is to do"
            )
        time.sleep(max(LOOK_SECONDS, took / LOOKING))


def _look_after(
    place: _Place, number: int, again: Callable[[], Handed], record: StudyRecord, progress: StudyProgress
) -> None:
    try:
        said = place.handed.said()
    except Died as death:
        done = len(record.state.results)
        place.deaths = place.deaths + 1 if done == place.results else 1
        place.results = done
        place.ended = place.deaths == DEATHS
        then = "the others go on without it" if place.ended else "another takes its place"
        progress.line(f"worker {number}: {death}; {then}")
        if not place.ended:
            place.handed = again()
        return
    if said:
        raise UserError(said)
    place.ended = said is not None
