"""`levelfield` as a process of its own that starts in a moment: forked from one that has imported everything."""

import multiprocessing
import os
import signal
import sys
from contextlib import suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["study_process", "levelfield.cli.study", "levelfield.study.run", "optuna"])


def _levelfield(words: list[str], log: Path, folder: Path) -> None:
    from levelfield.cli.main import main

    multiprocessing.set_start_method(multiprocessing.get_all_start_methods()[0], force=True)  # as outside of a test
    os.chdir(folder)
    with open(log, "w") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.exit(main(words))


class StudyProcess:
    """A running `levelfield` command.

    Args:
        words: The command line.
        log: File that takes all it prints.
        folder: Its working directory.
    """

    def __init__(self, words: list[str], log: Path, folder: Path | None = None) -> None:
        self.log = log
        self._process: ForkServerProcess = CONTEXT.Process(target=_levelfield, args=(words, log, folder or Path.cwd()))
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs, the negative number of the signal that ended it."""
        return self._process.exitcode

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(self.pid, number)

    def wait(self, seconds: float = 600) -> str:
        """What it printed, when it has ended."""
        self._process.join(seconds)
        assert self._process.exitcode is not None, f"it has not ended: {self.log.read_text()}"
        return self.log.read_text()


def children(process: int) -> list[int]:
    """The processes that its threads have started, and those that these have; any of them may end meanwhile."""
    found: list[int] = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for thread in list(Path(f"/proc/{process}/task").iterdir()):
            with suppress(FileNotFoundError, ProcessLookupError):
                found += [int(child) for child in (thread / "children").read_text().split()]
    return [*found, *(further for child in found for further in children(child))]


def command_of(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""
