"""Processes that do not outlive the one that started them."""

import os
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

# Between two looks at what other processes do.
LOOK_SECONDS = 0.5
# How a pool tells its workers how many they are.
SIDE_BY_SIDE = "LEVELFIELD_SIDE_BY_SIDE"

# How the first process of a command tells those that Lightning starts for it which one it is.
FIRST = "LEVELFIELD_FIRST_PROCESS"


def cores_here() -> int:
    """The cores that this process may use; its share of them where it is one of several workers of a study."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get(SIDE_BY_SIDE, "1")))


def end_with_parent(parent: int, number: int = 0) -> None:
    """End this process once `parent`, for which it works, is gone, however it went.

    A loader process takes this as its `worker_init_fn`: `partial(end_with_parent, os.getpid())`.

    Args:
        parent: Process id of the one that this one works for; asked for before this one is started.
        number: Which loader this is; torch says so, and it does not matter.
    """
    # A fork server stands between them: the default start of processes since Python 3.14.
    is_child = os.getppid() == parent

    def watch() -> None:
        while os.getppid() == parent if is_child else is_running(parent):
            time.sleep(LOOK_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="ends with its parent", daemon=True).start()


def end_with_first() -> None:
    """Let the processes that Lightning will start for this command end with it, or end with the one that it is for.

    Lightning ends all when one of them fails, but leaves them behind, in wait for it, when the first does.
    """
    if os.environ.get("LOCAL_RANK", "0") == "0":
        os.environ[FIRST] = str(os.getpid())
    elif FIRST in os.environ:
        end_with_parent(int(os.environ[FIRST]))


def end(processes: Sequence[subprocess.Popen]) -> None:
    """End processes that this one started: at Ctrl-C, or after 20 s in which they write their last state, by force."""
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
    """Whether a process of this host runs; one that is dead and not yet buried does not."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:  # ended meanwhile, or a system without /proc
        return not Path("/proc/self/stat").exists()
