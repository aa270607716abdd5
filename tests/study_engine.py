"""A study in tests: in this process, or as a process that starts in a moment."""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from toy_study import TOY, run_study

from levelfield.core import source_identity
from levelfield.study import training_job
from levelfield.study.folder import StudyFolder
from levelfield.study.rows import load_spec

TABLES = ("results.csv", "summary.csv")
# The toy study without a search: two methods x two folds, one run of one epoch.
SMALL = f"""
name: small
{TOY[TOY.index("base:") : TOY.index("methods:")].replace("max_epochs: 2", "max_epochs: 1")}methods:
  contrastive: {{model: {{loss: ContrastiveLoss}}}}
  mine: {{model: {{loss: my_loss.Mine}}}}
folds: 2
runs: 1
threads: 1
"""
MINE = """
import torch

from levelfield.losses import ContrastiveLoss


class Mine(ContrastiveLoss):
    def forward(self, embeddings, labels, indices_tuple=None, ref_emb=None, ref_labels=None):
        {before}
        return super().forward(embeddings, labels, indices_tuple, ref_emb, ref_labels)
"""
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["study_engine", "levelfield.study.seal", "levelfield.study.first_look", "optuna"])


def small_study(folder: Path, before: str = "pass", text: str = SMALL) -> Path:
    """A study file with a loss of one's own beside it, which does something before it computes."""
    sys.modules.pop("my_loss", None)  # as in another process
    training_job._imported.clear()
    source_identity._known.cache_clear()  # an edit of the same size in the same tick of the clock
    (folder / "my_loss.py").write_text(MINE.format(before=before.replace("\n", "\n        ")))
    (folder / "small.yaml").write_text(text)
    return folder / "small.yaml"


def run_file(file: Path, folder: Path, *args: Any, **kwargs: Any) -> StudyFolder:
    return run_study(folder, load_spec(file), *args, **kwargs)


def tables(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in TABLES]


def results(folder: Path, pattern: str = "*/*/fold*") -> list[Path]:
    return sorted(folder.glob(f"jobs/{pattern}/result.json"))


def begun_jobs(folder: Path, row: str = "*") -> list[Path]:
    """Jobs that have begun and have no result."""
    found = folder.glob(f"jobs/{row}/*/fold*/config.yaml")
    return [path.parent for path in found if not path.with_name("result.json").exists()]


def _run(words: list[str], log: Path, folder: Path) -> None:
    multiprocessing.set_start_method(multiprocessing.get_all_start_methods()[0], force=True)  # as outside of a test
    os.setsid()
    os.chdir(folder)
    sys.path.append(str(folder))
    with open(log, "w") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    from levelfield.cli.main import main

    sys.exit(main(words))


class EngineProcess:
    """A running study.

    Args:
        file: The study file; its folder is the working directory.
        output: The study's folder; what it prints is beside it.
    """

    def __init__(self, file: Path, output: Path, *options: str) -> None:
        self.output, self.log = output, output.with_suffix(".log")
        words = ["study", "run", str(file), "--output", str(output), *options]
        self._process = CONTEXT.Process(target=_run, args=(words, self.log, file.parent))
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        return self._process.exitcode

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait_for(self, moment: Callable[[], Any]) -> Any:
        """What `moment` returns once that is true; fails where the study ends before."""
        deadline = time.monotonic() + 900
        while not (found := moment()):
            assert self.exit_code is None, f"the study ended before the moment came: {self.log.read_text()}"
            assert time.monotonic() < deadline, "the moment never came"
            time.sleep(0.005)
        return found

    def end(self, seconds: float = 900) -> str:
        """What it printed, when it has ended."""
        self._process.join(seconds)
        assert self.exit_code is not None, f"it has not ended: {self.log.read_text()}"
        return self.log.read_text()

    def workers(self) -> list[int]:
        """The worker processes that it has started."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                if stat.read_text().rpartition(")")[2].split()[1] == str(self.pid):
                    words = stat.with_name("cmdline").read_bytes()
                    if b"loky" in words and b"resource_tracker" not in words:
                        found.append(int(stat.parent.name))
        return found
