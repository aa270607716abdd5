"""One process at a time works on a study; the system takes a dead process' lock away."""

import fcntl
import json
import os
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from levelfield.errors import UserError

LOCK = "running.lock"


class StudyLock:
    """Holds a study folder for this process and says in the lock file what is being done.

    Raises:
        UserError: on entering, another living process holds it.
    """

    def __init__(self, study_folder: Path) -> None:
        self.path = study_folder / LOCK
        self._file: IO[str] | None = None

    def __enter__(self) -> "StudyLock":
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = open(self.path, "a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read()
            file.close()
            process = f" (process {json.loads(holder)['process']})" if holder else ""
            raise UserError(f"{self.path.parent}: another process{process} runs this study; wait or stop it") from None
        self._file = file
        self.describe(None)
        return self

    def describe(self, job: str | None) -> None:
        """Note which job is being done, for `study status`."""
        assert self._file is not None
        self._file.seek(0)
        self._file.truncate()
        json.dump({"process": os.getpid(), "job": job, "since": time.time()}, self._file)
        self._file.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._file is not None
        self._file.seek(0)
        self._file.truncate()
        self._file.close()


def running(study_folder: Path) -> dict[str, Any] | None:
    """What the process that holds the study does: `process`, `job` and `since` in seconds of the epoch; or None."""
    try:
        with open(study_folder / LOCK) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                content = file.read()
                return json.loads(content) if content else {"process": None, "job": None, "since": time.time()}
    except FileNotFoundError:
        pass
    return None
