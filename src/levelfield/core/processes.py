"""Child processes that end with their parent."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

# Seconds between two checks of other processes.
LOOK_SECONDS = 0.5
# Environment variable with the number of workers of a pool.
SIDE_BY_SIDE = "LEVELFIELD_SIDE_BY_SIDE"

# Environment variable with the id of the first process, for the processes that Lightning starts.
FIRST = "LEVELFIELD_FIRST_PROCESS"


def cores_here(together: int = 1) -> int:
    """The cores that this process may use; a worker of a study gets its share.

    Args:
        together: processes of this node that share these cores, unless SLURM has bound each to its own.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    is_bound = cores < int(os.environ.get("SLURM_CPUS_ON_NODE", "0"))
    return max(1, cores // int(os.environ.get(SIDE_BY_SIDE, "1")) // (1 if is_bound else together))


def free_memory() -> int:
    """Bytes of memory that this process may still take, with what the system uses for files; 2^63 if unknown."""
    free = [2**63]
    with suppress(OSError, StopIteration):  # not Linux
        lines = Path("/proc/meminfo").read_text().splitlines()
        free.append(next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")))
    with suppress(OSError, ValueError):  # no container, or `max`
        free.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(free)


def in_processes(processes: int, on_gpu: bool = False, persistent: bool = False) -> dict[str, Any]:
    """Arguments of a `DataLoader` whose processes end with this one.

    On Linux they are forks. Python 3.14 would import the user's script again in each of them, so a script without
    `if __name__ == "__main__"` would fail.
    """
    return {
        "num_workers": processes,
        "multiprocessing_context": "fork" if processes and sys.platform == "linux" else None,
        "persistent_workers": persistent and processes > 0,
        "worker_init_fn": partial(end_with_parent, os.getpid()) if processes else None,
        "pin_memory": on_gpu,
    }


def end_with_parent(parent: int, number: int = 0) -> None:
    """End this process when its `parent` ends for any reason.

    Args:
        parent: Process id of the parent, read before this process starts.
        number: Number of the loader, from torch; not used.
    """
    # A fork server may be the direct parent: the default since Python 3.14.
    is_child = os.getppid() == parent

    def watch() -> None:
        while os.getppid() == parent if is_child else is_running(parent):
            time.sleep(LOOK_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="ends with its parent", daemon=True).start()


def end_with_first() -> None:
    """End the processes that Lightning starts for this command when the first process ends.

    Lightning ends all processes if one of them fails, but not if the first does.
    """
    if os.environ.get("LOCAL_RANK", "0") == "0":
        os.environ[FIRST] = str(os.getpid())
    elif FIRST in os.environ:
        end_with_parent(int(os.environ[FIRST]))


def end(processes: Sequence[subprocess.Popen]) -> None:
    """Send SIGTERM to child processes, and kill them after 20 s."""
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(timeout=20)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            process.kill()
            process.wait()
        for pipe in filter(None, (process.stdin, process.stdout)):
            with suppress(BrokenPipeError):
                pipe.close()


def is_running(process: int) -> bool:
    """Whether a process of this host runs; a zombie does not."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:  # it has ended, or the system has no /proc
        return not Path("/proc/self/stat").exists()
