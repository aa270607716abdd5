"""Which process does which job of a study, or makes a cache; a dead process' locks are free.

On a local disk the system's locks are used (flock): free as soon as their holder is dead. On any other file system a
lock is a lease: a file that is created exclusively and that its holder touches every few seconds. A lease of a dead
process is free at once on its own host, and after `LEASE_SECONDS` on others; a process that stood still for that long
and has lost its lease is interrupted, as by Ctrl-C.
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
    """Holds one job, or another part, of a folder for this process, and says so in a file beside the lock.

    Args:
        part: Path of the job within `jobs`, or the name of the part.
        title: What is done, for `study status`.
        keeper: The process that started this one for its work, if one did: without it this one ends.

    Attributes:
        held: Whether this object holds it now.
        predecessor: What the holder before said of itself, if it died as the holder.

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
        """One for all attempts: a lease must be seen unchanged for as long as it lasts before it is taken over."""
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
        """Take the lock if no living process holds it, or wait for it; whether it is held now.

        Who asks again and again asks the same object: another host's lease is over only for one that watched it.
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
            f"levelfield: {self.path}: another process has taken over, for this one was not heard of in time "
            f"({loss.reason}); it stops",
            file=sys.stderr,
        )
        os.kill(os.getpid(), signal.SIGINT)

    def release(self) -> None:
        """Let others have it."""
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
    """What living processes do in a folder: `part`, `host`, `process`, `title`, `since` (seconds of the epoch).

    The longest comes first.
    """
    found = [entry for entry in _descriptions(folder) if is_held(folder, entry["part"])]
    return sorted(found, key=lambda entry: entry["since"])


def left_by_the_dead(folder: Path) -> list[dict[str, Any]]:
    """What processes that died as holders said of themselves, as far as nobody has taken over."""
    return [entry for entry in _descriptions(folder) if not is_held(folder, entry["part"])]


def _descriptions(folder: Path) -> list[dict[str, Any]]:
    locks = folder / LOCKS
    found = ((path.relative_to(locks).with_suffix(""), read_json(path)) for path in locks.rglob("*.json"))
    return [{"part": str(part), **entry} for part, entry in found if entry is not None]


def is_held(folder: Path, part: str | Path) -> bool:
    """Whether a living process, this one or another, holds a part."""
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
