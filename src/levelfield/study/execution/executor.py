"""Who does a study's jobs. To add another: a file in this folder, named for its one class, and its test."""

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from levelfield.runtime.import_path import import_named
from levelfield.study.progress import StudyProgress
from levelfield.study.record import StudyRecord
from levelfield.training.mistakes import OneLineParser

DEFAULT = "LocalProcesses"
Jobs = Callable[[StudyRecord, StudyProgress], None]


class Executor(Protocol):
    """A dataclass whose fields are its options. It changes no number: jobs depend on the study's folder alone."""

    def side_by_side(self, record: StudyRecord) -> int:
        """How many jobs of a study are done side by side."""

    def words(self) -> list[str]:
        """What the command line says to have it again."""

    def ready(self, record: StudyRecord) -> AbstractContextManager[Jobs]:
        """Get ready before the study is looked at; gives what does its jobs, once `study.yaml` is there, to the last.

        Whoever takes part calls `worker.work` on the study's folder, which shares the jobs by their locks.
        """

    def testing(self, record: StudyRecord, opening: int) -> AbstractContextManager[None]:
        """Others call `opening.take_part` while this process scores runs of an opening of the test classes."""


def executor(name: str = DEFAULT, options: Mapping[str, Any] | None = None) -> Executor:
    """From the command line's `--executor NAME` and `--executor.<key> value`.

    Args:
        name: a class of this folder, or the import path of one's own.

    Raises:
        UserError: no such executor, an unknown key or a value that is not accepted.
    """
    module, _, kind = name.rpartition(".")
    path = name if module else f"{__package__}.{re.sub('(?<=[a-z])(?=[A-Z])', '_', kind).lower()}.{kind}"
    parser = OneLineParser()
    parser.add_class_arguments(import_named(path, f"--executor {name}"), "executor")
    return parser.instantiate(parser.parse_object({"executor": dict(options or {})})).executor
