"""Locks: one process writes a cache or a fit's folder. The lock of a dead process is free."""

import sys
from pathlib import Path
from types import TracebackType

import filelock

from levelfield.core.atomic import storing

LOCKS = "locks"
QUIET_SECONDS = 2.0  # of waiting before the user is told


class Lock:
    """The lock of one part of a folder.

    Args:
        part: The name of the part.
        title: The work, for other processes' users: they are told that their process waits for it.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder, Lock(Path(folder), "rows", "rows of a table"):
        ...     print(Lock(Path(folder), "rows", "the same rows").acquire())
        False
    """

    def __init__(self, folder: Path, part: str, title: str) -> None:
        self.path, self.title = folder / LOCKS / f"{part}.lock", title
        self._lock = filelock.FileLock(self.path, thread_local=False)

    def acquire(self, seconds: float = 0) -> bool:
        """Take the lock if no running process holds it; returns whether this object holds it now.

        Args:
            seconds: How long to wait for it; -1 has no limit.

        Raises:
            UserError: the system cannot store the file.
        """
        with storing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._lock.acquire(timeout=seconds)
            except filelock.Timeout:
                return False
        return True

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> "Lock":
        if not self.acquire(QUIET_SECONDS):
            print(f"waiting for another process: {self.title}", file=sys.stderr)
            self.acquire(seconds=-1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()
