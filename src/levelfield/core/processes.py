"""Processes: imports and memory at their start, launchers, and children that end with their parent."""

import ctypes
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's <malloc.h>
KEPT_BLOCK_BYTES = 1 << 30  # larger ones, such as the matrix of a whole data set, go back to the system
# The variable of each launcher with the number of processes that it has started.
LAUNCHERS = {
    **{"torchrun": "WORLD_SIZE", "mpirun": "OMPI_COMM_WORLD_SIZE"},
    **{"srun": "SLURM_STEP_NUM_TASKS", "sbatch": "SLURM_NTASKS"},
}
# Variables of a launcher; a job of a study has its own process group and must not see them.
OF_A_LAUNCHER = {
    *LAUNCHERS.values(),
    *("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"),
    *("LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"),
}
# By which a cluster announces the end of a job; SIGUSR1 comes from `scripts/slurm.sh`.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
LOOK_SECONDS = 0.5  # between two checks of other processes
# Environment variables: the number of workers of a pool; the id of the first process, for those that Lightning starts.
SIDE_BY_SIDE, FIRST = "LEVELFIELD_SIDE_BY_SIDE", "LEVELFIELD_FIRST_PROCESS"


def quick_imports() -> None:
    """Import torchmetrics, as Lightning does, without transformers and scipy.signal, which only its BERTScore needs."""
    late = {"transformers", "scipy.signal"} - sys.modules.keys()
    nothing: Any = SimpleNamespace(AutoModel=None, AutoTokenizer=None, hamming=None)  # what it imports of them
    sys.modules.update(dict.fromkeys(late, nothing))
    with suppress(ImportError, ValueError, AttributeError):  # then Lightning imports it again
        import_module("torchmetrics")
    for name in late:
        del sys.modules[name]


def keep_freed_memory() -> None:
    """Let glibc's malloc keep freed memory: else the system clears its pages again at each step of a training.

    That takes a fifth of the time on a CPU, for blocks above 32 MB, such as the output of a first convolution.
    """
    with suppress(AttributeError, OSError, TypeError):  # not glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, KEPT_BLOCK_BYTES)
        mallopt(M_TRIM_THRESHOLD, -1)


def forget_launcher() -> None:
    """Remove a launcher's variables, before the import of Lightning, which reads the rank."""
    for name in OF_A_LAUNCHER:
        os.environ.pop(name, None)


def launched_together() -> tuple[str, int, str] | None:
    """Launcher, number of processes, and both in words; None without a launcher."""
    is_task = "SLURM_PROCID" in os.environ and LAUNCHERS["srun"] not in os.environ  # of a job without steps
    for launcher, name in LAUNCHERS.items():
        count = os.environ.get(name, "1")
        if count.isdigit() and int(count) > 1 and (launcher != "sbatch" or is_task):
            return launcher, int(count), f"one of {count} processes ({name}={count})"
    return None


def launched_nodes() -> int | None:
    """The number of nodes that a launcher uses for this command; None if unknown."""
    names = ("GROUP_WORLD_SIZE", "SLURM_STEP_NUM_NODES", "SLURM_NNODES")  # torchrun's, then SLURM's
    return next((int(nodes) for name in names if (nodes := os.environ.get(name, "")).isdigit()), None)


def cores_here(together: int = 1) -> int:
    """The cores of this process or worker; `together` processes of a node share them, unless SLURM has bound each."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    is_bound = cores < int(os.environ.get("SLURM_CPUS_ON_NODE", "0"))
    return max(1, cores // int(os.environ.get(SIDE_BY_SIDE, "1")) // (1 if is_bound else together))


def free_memory() -> int:
    """Bytes of memory that this process may still take, with those of files in memory; 2^63 if unknown."""
    free = [2**63]
    with suppress(OSError, StopIteration):  # not Linux
        lines = Path("/proc/meminfo").read_text().splitlines()
        free.append(next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")))
    with suppress(OSError, ValueError):  # no container, or `max`
        free.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(free)


def in_processes(processes: int, on_gpu: bool = False, persistent: bool = False) -> dict[str, Any]:
    """Arguments of a `DataLoader` whose processes end with this one.

    On Linux they are forks: else Python 3.14 fails for scripts without `if __name__ == "__main__"`.
    """
    return {
        "num_workers": processes,
        "multiprocessing_context": "fork" if processes and sys.platform == "linux" else None,
        "persistent_workers": persistent and processes > 0,
        "worker_init_fn": partial(end_with_parent, os.getpid()) if processes else None,
        "pin_memory": on_gpu,
    }


def interrupt_at_signals() -> None:
    """Let the signals of a cluster act as Ctrl-C: the same command continues the work, a fit with `--resume`."""
    if threading.current_thread() is threading.main_thread():  # which alone gets signals
        for number in SIGNALS:
            signal.signal(number, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGCHLD, lambda *_: None)  # torch's raises when the signal has ended a loader process, too
    raise KeyboardInterrupt


def was_interrupted(error: BaseException | None) -> bool:
    """Whether an error comes from the clean-up after Ctrl-C, such as that of loaders which have ended."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def is_first_rank() -> bool:
    """Whether this is the first process of its run: as Lightning knows, or before it, by the launcher's variables."""
    lightning = sys.modules.get("lightning_utilities.core.rank_zero")
    rank = getattr(getattr(lightning, "rank_zero_only", None), "rank", None)
    variables = (os.environ.get(name, "0") for name in ("RANK", "SLURM_PROCID", "LOCAL_RANK"))
    return all(each == "0" for each in variables) if rank is None else rank == 0


def end_with_parent(parent: int, number: int = 0) -> None:
    """End this process when its `parent` (a process id) ends for any reason; torch adds the number of the loader."""
    is_child = os.getppid() == parent  # not with a fork server, the default since Python 3.14

    def watch() -> None:
        while os.getppid() == parent if is_child else is_running(parent):
            time.sleep(LOOK_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="ends with its parent", daemon=True).start()


def end_with_first() -> None:
    """End the processes that Lightning starts for this command when the first ends, which Lightning does not."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        os.environ[FIRST] = str(os.getpid())
    elif FIRST in os.environ:
        end_with_parent(int(os.environ[FIRST]))


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
