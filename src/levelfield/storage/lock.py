"""Which process does which job of a study; the system takes a dead process' locks away."""

import fcntl
import json
import os
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from levelfield.storage.atomic import storing

LOCKS = "locks"


class Lock:
    """Holds one job, or another part, of a study for this process, and says so in the lock's file.

    Args:
        study_folder: The study's folder.
        part: Path of the job within `jobs`, or the name of the part.
        title: What is done, for `study status`.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     with Lock(Path(folder), "test", "test") as lock:
        ...         print(lock.held, running(Path(folder))[0]["title"])
        True test
    """

    def __init__(self, study_folder: Path, part: str | Path, title: str) -> None:
        self.path = study_folder / LOCKS / f"{part}.lock"
        self.title = title
        self._file: IO[str] | None = None

    @property
    def held(self) -> bool:
        return self._file is not None

    def acquire(self, wait: bool = False) -> bool:
        """Take the lock if no living process holds it, or wait for it; whether it is held now."""
        with storing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = open(self.path, "a+")  # noqa: SIM115 held as long as the lock
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                file.truncate(0)
                json.dump({"process": os.getpid(), "title": self.title, "since": time.time()}, file)
                file.flush()
            except BlockingIOError:
                file.close()
                return False
            except BaseException:
                file.close()
                raise
            self._file = file
            return True

    def release(self) -> None:
        """Let others have it."""
        if self._file is not None:
            # Closing alone would leave it with the loader processes that were forked meanwhile.
            fcntl.flock(self._file, fcntl.LOCK_UN)
            self._file.close()
            self._file = None

    def __enter__(self) -> "Lock":
        self.acquire(wait=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


def running(study_folder: Path) -> list[dict[str, Any]]:
    """What living processes do in a study: `process`, `title` and `since` (seconds of the epoch), the longest first."""
    found = []
    for path in (study_folder / LOCKS).rglob("*.lock"):
        with open(path) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                content = file.read()
                found.append(json.loads(content) if content else {"process": None, "title": "", "since": time.time()})
    return sorted(found, key=lambda entry: entry["since"])
