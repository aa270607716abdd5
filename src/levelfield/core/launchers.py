"""The number of processes that a launcher (torchrun, SLURM) has started for one command."""

import os

LAUNCHERS = {
    "torchrun": "WORLD_SIZE",
    "srun": "SLURM_STEP_NUM_TASKS",
    "sbatch": "SLURM_NTASKS",
    "mpirun": "OMPI_COMM_WORLD_SIZE",
}
# Variables of a launcher; a job of a study has its own process group and must not see them.
OF_A_LAUNCHER = {
    *LAUNCHERS.values(),
    *("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"),
    *("LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"),
}


def forget_launcher() -> None:
    """Remove a launcher's variables. It comes before the import of Lightning, which reads the rank."""
    for name in OF_A_LAUNCHER:
        os.environ.pop(name, None)


def launched_together() -> tuple[str, int, str] | None:
    """Launcher, number of processes, and both in words; None without a launcher."""
    step = "SLURM_STEP_NUM_TASKS" in os.environ
    for launcher, name in LAUNCHERS.items():
        count = os.environ.get(name, "1")
        if launcher == "sbatch" and (step or "SLURM_PROCID" not in os.environ):
            continue
        if count.isdigit() and int(count) > 1:
            return launcher, int(count), f"one of {count} processes ({name}={count})"
    return None


def launched_nodes() -> int | None:
    """The number of nodes that a launcher uses for this command; None if unknown."""
    nodes = os.environ.get("SLURM_STEP_NUM_NODES", os.environ.get("SLURM_NNODES", ""))
    here = os.environ.get("LOCAL_WORLD_SIZE", "")
    if here.isdigit() and int(here) > 0:
        return int(os.environ.get("WORLD_SIZE", here)) // int(here)
    return int(nodes) if nodes.isdigit() else None


def restarted() -> bool:
    """Whether SLURM has requeued this job, or torchrun started its processes again."""
    counts = ("SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT")
    return any(os.environ.get(name, "0") not in ("", "0") for name in counts)
