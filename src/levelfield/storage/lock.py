"""Locks: which process runs a job of a study, or writes a cache. The lock of a dead process is free.

On a local disk these are the system's locks (flock), which are free as soon as their holder is dead. On any other file
system a lock is a lease: a file that is created exclusively and that its holder touches every few seconds. The lease of
a dead process is free at once on its own host, and after `LEASE_SECONDS` on others. A process that was paused for that
long and has lost its lease is interrupted, as by Ctrl-C.
"""

import fcntl
import json
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import filelock

from levelfield.runtime.processes import is_running
from levelfield.storage.atomic import new_file, read_json, storing
from levelfield.storage.lock_kind import lock_kind

LOCKS = "locks"


class Lock:
    """The lock of one job or other part of a folder; a file next to it describes the holder.

    Args:
        part: Path of the job within `jobs`, or the name of the part.
        title: The work, for `study status`.
        keeper: The process that started this worker, if any; the worker ends with it.

    Attributes:
        held: Whether this object holds the lock now.
        predecessor: The description of the last holder, if it died.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     with Lock(Path(folder), "test", "test") as lock:
        ...         print(lock.held, running(Path(folder))[0]["title"])
        True test
    """

    def __init__(self, folder: Path, part: str | Path, title: str, keeper: int | None = None) -> None:
        self.path = folder / LOCKS / f"{part}.lock"
        self.title = title
        self.keeper = keeper
        self.predecessor: dict[str, Any] | None = None
        self.held = False
        self._folder = folder

    @cached_property
    def _lock(self) -> filelock.BaseFileLock:
        """The same object for all attempts: it takes over a lease that it has seen unchanged for long enough."""
        seconds = lock_kind(self._folder / LOCKS).lease_seconds
        if seconds is None:
            return filelock.FileLock(self.path, thread_local=False, fallback_to_soft=False)
        return filelock.SoftFileLease(
            self.path, lease_duration=seconds, on_compromise=self._stop_work, thread_local=False
        )

    @property
    def _description(self) -> Path:
        return self.path.with_suffix(".json")

    def acquire(self, wait: bool = False) -> bool:
        """Take the lock if no running process holds it, or wait for it; returns whether it is held now.

        To try repeatedly, use the same object: only an object that watched another host's lease can see it expire.
        """
        with storing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._lock.acquire(blocking=wait)
            except filelock.Timeout:
                return False
            self.held = True
            try:
                self.predecessor = read_json(self._description)
                self._describe()
            except BaseException:
                self.release()
                raise
        return True

    def _describe(self) -> None:
        words = {
            "host": socket.gethostname(),
            "process": os.getpid(),
            "keeper": self.keeper,
            "title": self.title,
            "since": time.time(),
        }
        with new_file(self._description) as file:
            file.write(json.dumps(words).encode())

    def _stop_work(self, loss: filelock.LeaseCompromise) -> None:
        print(
            f"levelfield: {self.path}: another process has taken the lock, because this one did not renew it in time "
            f"({loss.reason}); this process stops",
            file=sys.stderr,
        )
        os.kill(os.getpid(), signal.SIGINT)

    def release(self) -> None:
        if self.held:
            self.held = False
            entry = read_json(self._description) or {}
            if (entry.get("host"), entry.get("process")) == (socket.gethostname(), os.getpid()):
                self._description.unlink(missing_ok=True)
            self._lock.release()

    def __enter__(self) -> "Lock":
        self.acquire(wait=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


def running(folder: Path) -> list[dict[str, Any]]:
    """The work of running processes in a folder: `part`, `host`, `process`, `title`, `since` (seconds of the epoch).

    The oldest comes first.
    """
    found = [entry for entry in _descriptions(folder) if is_held(folder, entry["part"])]
    return sorted(found, key=lambda entry: entry["since"])


def left_by_the_dead(folder: Path) -> list[dict[str, Any]]:
    """Descriptions of stale locks: their holders died and no process has taken over."""
    return [entry for entry in _descriptions(folder) if not is_held(folder, entry["part"])]


def _descriptions(folder: Path) -> list[dict[str, Any]]:
    locks = folder / LOCKS
    found = ((path.relative_to(locks).with_suffix(""), read_json(path)) for path in locks.rglob("*.json"))
    return [{"part": str(part), **entry} for part, entry in found if entry is not None]


def is_held(folder: Path, part: str | Path) -> bool:
    """Whether a running process, this one or another, holds a part."""
    path = folder / LOCKS / f"{part}.lock"
    if not path.exists():
        return False
    seconds = lock_kind(folder / LOCKS).lease_seconds
    with suppress(FileNotFoundError):
        if seconds is not None:
            entry = read_json(path.with_suffix(".json"))
            if entry is not None and entry["host"] == socket.gethostname():
                return is_running(entry["process"])
            return time.time() - path.stat().st_mtime < 2 * seconds
        with open(path) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
    return False
