"""Python processes that start in a moment: forked from one that has imported what is dear and computed nothing.

`python("-m", "levelfield", "fit")` is `subprocess.run([sys.executable, "-m", "levelfield", "fit"])`, `Forked` is
`subprocess.Popen`, and `torchrun` is the launcher. A test of what Python itself does at a start needs a real one.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        *("forked", "optuna", "yaml", "lightning.pytorch", "timm", "torchvision", "torchmetrics", "tokenizers"),
        *("levelfield.cli.study", "levelfield.study.run", "levelfield.study.seal", "levelfield.study.first_look"),
        *("levelfield.training.learner", "levelfield.data.datamodule", "levelfield.models", "levelfield.losses"),
    ]
)


def _begin(words: list[str], out: str, error: str, folder: str, environment: dict[str, str], group: bool) -> None:
    """Be what `python words` is."""
    multiprocessing.set_start_method(multiprocessing.get_all_start_methods()[0], force=True)  # as outside of a test
    atexit._clear()  # of the process that this one was forked from
    if group:
        os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for stream, file in ((sys.stdout, out), (sys.stderr, error)):
        os.dup2(os.open(file, os.O_CREAT | os.O_APPEND | os.O_WRONLY), stream.fileno())
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    first = {"-m": folder, "-c": ""}.get(words[0], os.path.dirname(words[0]))
    sys.path[:0] = [first, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path[1:]))  # of a process that this one starts
    import torch
    from lightning.fabric.utilities.rank_zero import rank_zero_only

    torch.set_num_threads(int(environment.get("OMP_NUM_THREADS", 1)))
    rank_zero_only.rank = int(environment.get("RANK", 0))  # which Lightning reads when it is imported
    try:
        if words[0] == "-m":
            sys.argv = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        elif words[0] == "-c":
            sys.argv = ["-c", *words[2:]]
            exec(words[1], {"__name__": "__main__"})
        else:
            sys.argv = list(words)
            runpy.run_path(words[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()


class Forked:
    """A running `python words`.

    Args:
        words: `-m MODULE`, `-c CODE` or a file, and their arguments.
        log: File that takes all it prints; a name with `.error` takes its complaints where `apart`.
        folder: Its working directory.
        group: It leads a process group of its own.
        environment: Variables that it has beside those of this process.
    """

    def __init__(
        self,
        words: Sequence[object],
        log: Path,
        folder: Path | None = None,
        *,
        apart: bool = False,
        group: bool = False,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.log = log
        self.complaints = log.with_name(f"{log.name}.error") if apart else log
        for file in (self.log, self.complaints):
            file.write_text("")
        there = {**os.environ, **(environment or {})}
        arguments = ([str(word) for word in words], str(self.log), str(self.complaints), str(folder or Path.cwd()))
        self._process: ForkServerProcess = CONTEXT.Process(target=_begin, args=(*arguments, there, group))
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

    def wait_for(self, moment: Callable[[], Any], seconds: float = 300) -> Any:
        """What `moment` returns once that is true; fails where the process ends before."""
        deadline = time.monotonic() + seconds
        while not (found := moment()):
            assert self.exit_code is None, f"it ended before the moment came: {self.printed()}"
            assert time.monotonic() < deadline, f"the moment never came: {self.printed()}"
            time.sleep(0.005)
        return found

    def printed(self) -> str:
        return self.log.read_text() + (self.complaints.read_text() if self.complaints != self.log else "")

    def wait(self, seconds: float = 300) -> str:
        """What it printed, when it has ended."""
        self._process.join(seconds)
        if self._process.exitcode is None:
            self._process.kill()
            raise AssertionError(f"it has not ended: {self.printed()}")
        return self.printed()


def levelfield(*words: object) -> list[object]:
    return ["-m", "levelfield", *words]


def python(
    *words: object, folder: Path | None = None, seconds: float = 240, **environment: str
) -> CompletedProcess[str]:
    """Run `python words` until it ends: its exit code, output and complaints."""
    return _run([words], folder, seconds, [environment])[0]


def torchrun(
    *words: object, folder: Path | None = None, seconds: float = 240, num_processes: int = 2, **environment: str
) -> list[CompletedProcess[str]]:
    """Run `torchrun --standalone --nproc-per-node=num_processes words`: what the ranks printed, in their order."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    of_all = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": num_processes}
    of_all |= {"LOCAL_WORLD_SIZE": num_processes, "GROUP_RANK": 0, "TORCHELASTIC_RUN_ID": port}
    of_all |= {"TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0}
    ranks = [of_all | {"RANK": rank, "LOCAL_RANK": rank} for rank in range(num_processes)]
    variables = [environment | {name: str(value) for name, value in each.items()} for each in ranks]
    return _run([words] * num_processes, folder, seconds, variables)


def _run(
    commands: Sequence[Sequence[object]], folder: Path | None, seconds: float, variables: list[dict[str, str]]
) -> list[CompletedProcess[str]]:
    with tempfile.TemporaryDirectory() as place:
        started = [
            Forked(words, Path(place, str(number)), folder, apart=True, environment=each)
            for number, (words, each) in enumerate(zip(commands, variables, strict=True))
        ]
        deadline = time.monotonic() + seconds
        while any(each.exit_code is None for each in started):
            if any(each.exit_code for each in started):
                deadline = min(deadline, time.monotonic() + 5)  # the others may wait for one that has failed
            if time.monotonic() > deadline:
                for each in started:
                    each.signal(signal.SIGKILL)
            time.sleep(0.005)
        return [
            CompletedProcess(list(words), each.exit_code or 0, each.log.read_text(), each.complaints.read_text())
            for words, each in zip(commands, started, strict=True)
        ]


def run_script(script: Path, *words: object) -> None:
    """Run a script that forks."""
    done = python(script, *words)
    assert done.returncode == 0, done.stderr[-3000:]


def fork(world_size: int, work: Callable[[int], None]) -> None:
    """`work(rank)` in a process for each rank; ends this one where one of them fails."""
    children = []
    for rank in range(world_size):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                work(rank)
                status = 0
            finally:
                if status:
                    sys.excepthook(*sys.exc_info())
                sys.stderr.flush()
                os._exit(status)
        children.append(child)
    if sum(os.waitpid(child, 0)[1] for child in children):
        sys.exit(1)


def children(process: int) -> list[int]:
    """The processes that its threads have started, and those that these have; any of them may end meanwhile."""
    found: list[int] = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for thread in list(Path(f"/proc/{process}/task").iterdir()):
            with suppress(FileNotFoundError, ProcessLookupError):
                found += [int(child) for child in (thread / "children").read_text().split()]
    return [*found, *(further for child in found for further in children(child))]
