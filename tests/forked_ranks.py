"""Processes for the ranks of a group, from a script that has imported what is dear to import and computed nothing."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path


def run_script(script: Path, *words: str) -> None:
    """Run a script that forks, in a process of its own."""
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    command = [sys.executable, str(script), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
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
