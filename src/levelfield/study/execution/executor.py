"""Who does a study's jobs. To add another: a file in `executors`, named for its one class, and its test."""

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import MISSING, fields
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Protocol

from levelfield.errors import UserError, nearest
from levelfield.runtime.import_path import import_named
from levelfield.study.progress import StudyProgress
from levelfield.study.record import StudyRecord
from levelfield.training.mistakes import OneLineParser

DEFAULT = "local"
Jobs = Callable[[StudyRecord, StudyProgress], None]


class Submitted(Exception):  # noqa: N818  # it says what happened to a study's jobs
    """The jobs are handed over to a queue, and nobody waits for them; the message says how to go on."""


class Executor(Protocol):
    """A dataclass whose fields are its options. It changes no number: jobs depend on the study's folder alone."""

    def side_by_side(self, record: StudyRecord) -> int:
        """How many jobs of a study are done side by side."""

    def words(self) -> list[str]:
        """What the command line says to have it again."""

    def ready(self, record: StudyRecord) -> AbstractContextManager[Jobs]:
        """Get ready before the study is looked at; gives what does its jobs, once `study.yaml` is there, to the last.

        Whoever takes part calls `worker.work` on the study's folder, which shares the jobs by their locks.

        Raises:
            Submitted: by what is given, where it does not wait for the jobs.
        """

    def testing(self, record: StudyRecord, opening: int) -> AbstractContextManager[None]:
        """Others call `opening.take_part` while this process scores runs of an opening of the test classes."""


def executor(name: str = DEFAULT, options: Mapping[str, Any] | None = None) -> Executor:
    """From the command line's `--executor NAME` and `--executor.<key> value`.

    Args:
        name: a file of `executors` (`local`, `ray`, `slurm`), its class, or the import path of one's own.

    Raises:
        UserError: no such executor, an unknown key or a value that is not accepted.
    """
    if "." in name:
        path = name
    else:
        kind = name if name[:1].isupper() else "".join(map(str.capitalize, name.split("_")))
        file = re.sub("(?<=[a-z])(?=[A-Z])", "_", kind).lower()
        if file not in (shipped := [each.name for each in iter_modules([str(Path(__file__).with_name("executors"))])]):
            raise UserError(f"--executor {name}: no such executor{nearest(name, shipped)}")
        path = f"{__package__}.executors.{file}.{kind}"
    parser = OneLineParser()
    parser.add_class_arguments(import_named(path, f"--executor {name}"), "executor")
    return parser.instantiate(parser.parse_object({"executor": dict(options or {})})).executor


def options_in_words(chosen: Any) -> list[str]:
    """The options of an executor that are not its defaults, as the command line takes them."""
    given = {each.name: getattr(chosen, each.name) for each in fields(chosen)}
    defaults = {
        each.name: each.default if each.default_factory is MISSING else each.default_factory()
        for each in fields(chosen)
    }
    return [f"--executor.{name}={value}" for name, value in given.items() if value != defaults[name]]
