"""The locks of a study's folder. A process that is killed releases them."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from levelfield.core.errors import UserError
from levelfield.core.files import explain_write_errors, read_json, write_json

LOCK, HOLDER, WRITING = ".lock", ".running.json", ".writing.lock"
# Seconds that the workers of a killed process may hold its lock: they notice its end after half a second.
LEFT_SECONDS = 5.0


def writing(folder: Path) -> FileLock:
    """Lock the tables and the page: `study report` may run at the same time as the study."""
    return FileLock(folder / WRITING)


def running_process(folder: Path) -> dict[str, Any] | None:
    """The process that runs the study now, with `process`, `host` and `since`; None if there is none."""
    if not (folder / LOCK).exists():
        return None
    try:
        with FileLock(folder / LOCK, timeout=0):
            return None
    except Timeout:
        return read_json(folder / HOLDER) or {}


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Lock the study.

    Raises:
        UserError: another process runs it; names the process and the time.
    """
    lock, holder = FileLock(folder / LOCK), folder / HOLDER
    try:
        with explain_write_errors(folder / LOCK):
            lock.acquire(timeout=LEFT_SECONDS, poll_interval=0.1)
    except Timeout:
        known = read_json(holder) or {}
        who = f"process {known.get('process')} on {known.get('host')}, since {known.get('since')}"
        raise UserError(f"{folder}: another process runs this study ({who}); wait for it or stop it") from None
    try:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        write_json(holder, {"process": os.getpid(), "host": socket.gethostname(), "since": now})
        yield
    finally:
        holder.unlink(missing_ok=True)
        lock.release()
