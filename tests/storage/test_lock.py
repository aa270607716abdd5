"""One living process writes a part of a folder."""

import contextlib
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from levelfield.storage.lock import QUIET_SECONDS, Lock

# Takes the lock of `part`, says so, and keeps it until a line comes.
HOLDER = """
import sys
from pathlib import Path
from levelfield.storage.lock import Lock
with Lock(Path(sys.argv[1]), "part", "held elsewhere"):
    print("held", flush=True)
    sys.stdin.readline()
"""


@contextlib.contextmanager
def holder(folder: Path) -> Iterator[subprocess.Popen]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.processes
def test_a_part_has_one_lock_which_a_killed_process_loses(tmp_path: Path) -> None:
    lock = Lock(tmp_path, "part", "work")
    with holder(tmp_path):
        assert not lock.acquire()
        with Lock(tmp_path, "other", "other work"):
            assert not Lock(tmp_path, "other", "the same").acquire()
    assert lock.acquire()
    lock.release()
    lock.release()
    with Lock(tmp_path, "part", "again"):
        assert not lock.acquire()


@pytest.mark.processes
def test_who_waits_is_told_for_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with holder(tmp_path) as process:
        timer = multiprocessing.get_context("fork").Process(target=end_later, args=(process.stdin.fileno(),))
        timer.start()
        with Lock(tmp_path, "part", "rows of few.csv"):
            assert capsys.readouterr().err == "waiting for another process: rows of few.csv\n"
        timer.join()


def end_later(descriptor: int) -> None:
    time.sleep(QUIET_SECONDS + 1)
    os.write(descriptor, b"\n")


@pytest.mark.processes
def test_no_child_holds_a_lock_of_its_parent(tmp_path: Path) -> None:
    """Loaders are forked while a lock is held."""
    lock = Lock(tmp_path, "part", "part")
    lock.acquire()
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    child.start()

    def its_locks() -> list[str]:
        """Those that it has open at this moment: it closes files of its own while they are read here."""
        found = []
        for path in Path(f"/proc/{child.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                found.append(os.readlink(path))
        return [path for path in found if path.endswith(".lock")]

    deadline = time.monotonic() + 10
    while its_locks():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    lock.release()
    with Lock(tmp_path, "part", "part"):
        child.kill()
    child.join()
