"""A job on several devices: a group of processes of its own, so that no other job is drawn into it."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from levelfield.errors import OutOfMemory, TrainingFailed, UserError
from levelfield.runtime.launchers import LAUNCHERS, launched_together
from levelfield.runtime.processes import end
from levelfield.runtime.signals import is_first_rank
from levelfield.study.definition.configuration import Config
from levelfield.study.jobs.job import Job

# What the others of a group have to end by themselves, once one of them has failed.
LAST_SECONDS = 5


class GroupDied(Exception):  # noqa: N818  # it says what happened to the processes
    """The processes that trained together were killed, or one ended with an error that no user can mend."""


def train_in_group(study_folder: Path, job: Job, config: Config, checkpoint_seconds: float) -> dict[str, Any]:
    """What `train` does, with the same result and errors, in processes of its own, one a device.

    Raises:
        GroupDied: a process was killed, or ended with another error, which it has printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        request = Path(folder) / "request.json"
        words = {
            "parent": os.getpid(),
            "study_folder": str(study_folder.absolute()),
            "job": asdict(job),
            "config": config,
            "checkpoint_seconds": checkpoint_seconds,
        }
        request.write_text(json.dumps(words))
        process = subprocess.Popen(
            # Lightning starts the further processes by this same command.
            [sys.executable, "-m", "levelfield.study.execution.group_process", str(request)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            env={name: value for name, value in os.environ.items() if name not in OF_A_LAUNCHER},
            start_new_session=True,
        )
        assert process.stdout is not None
        try:
            answer = process.stdout.readline()  # the first: others may fail for its cause
            said: tuple[str, Any] = json.loads(answer) if answer else ("", None)
            kind, found = said
            _wait_for_all(process, None if kind in ("result", "") else LAST_SECONDS)
        except BaseException:
            end([process])
            raise
    if not answer:
        code = process.returncode
        raise GroupDied(f"its processes died (signal {-code})" if code < 0 else f"its processes ended with {code}")
    if kind == "result":
        return found
    if kind == "error":
        raise GroupDied(f"one of its processes ended with {found}")
    raise {"memory": OutOfMemory, "failure": TrainingFailed, "mistake": UserError}[kind](found)


def _wait_for_all(process: subprocess.Popen, seconds: float | None) -> None:
    """Wait until the last of a group has closed its standard output, and kill those that have not after `seconds`."""
    try:
        process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


# A group that read these would wait for processes that nobody starts, or meet another one at its port.
OF_A_LAUNCHER = {
    *LAUNCHERS.values(),
    *("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_PROCID"),
    *("LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"),
}


def refuse_to_be_one_of_many() -> None:
    """A study takes jobs in one process and starts the others itself.

    Raises:
        UserError: a launcher has started this process as one of several.
    """
    alone = (
        "and a study starts its own: start it once (srun --ntasks=1), with --executor.workers N for jobs side by side "
        "and --trainer.devices N for jobs on several devices"
    )
    launched = launched_together()
    if launched is not None:
        launcher, _, number = launched
        raise UserError(f"{launcher} started this study as {number}, {alone}")
    if not is_first_rank():
        raise UserError(
            f"RANK, LOCAL_RANK or SLURM_PROCID is set, and not to 0, as for one of several processes, {alone}; "
            "unset it if nothing else runs"
        )
