"""One living process a job; `study status` sees what each does."""

import contextlib
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from levelfield.storage.lock import Lock, is_held, running

# Takes the lock of `part`, as a process of the host that is named, and says so.
HOLDER = """
import socket, sys, time
from pathlib import Path
from levelfield.storage.lock import Lock
if sys.argv[2]:
    socket.gethostname = lambda: sys.argv[2]
lock = Lock(Path(sys.argv[1]), "part", "held elsewhere", keeper=17)
print(lock.acquire(), flush=True)
try:
    time.sleep(600)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.fixture(params=["system", "lease 2"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "kind").write_text(f"{request.param}\n")
    return tmp_path


def holder(folder: Path, host: str = "") -> subprocess.Popen:
    words = [sys.executable, "-c", HOLDER, str(folder), host]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    return process


def end(process: subprocess.Popen) -> None:
    process.kill()
    process.communicate()


def test_a_job_is_held_by_one_process_and_says_what_it_does(folder: Path) -> None:
    lock = Lock(folder, "arcface/run0/fold1", "arcface run 0 fold 1")
    assert lock.acquire()
    (now,) = running(folder)
    assert (now["host"], now["process"]) == (socket.gethostname(), os.getpid())
    assert (now["part"], now["title"]) == ("arcface/run0/fold1", "arcface run 0 fold 1")
    assert not Lock(folder, "arcface/run0/fold1", "the same").acquire()
    other = Lock(folder, "arcface/run0/fold2", "arcface run 0 fold 2")
    assert other.acquire()
    assert len(running(folder)) == 2
    other.release()
    lock.release()
    assert running(folder) == []
    with Lock(folder, "arcface/run0/fold1", "again") as again:
        assert again.held
        assert again.predecessor is None


@pytest.mark.processes
def test_the_lock_of_a_dead_process_is_free_and_says_whose_it_was(folder: Path) -> None:
    process = holder(folder)
    lock = Lock(folder, "part", "part")
    assert is_held(folder, "part")
    assert not lock.acquire()
    end(process)
    assert running(folder) == []
    assert not is_held(folder, "part")
    assert lock.acquire()
    assert lock.predecessor is not None
    assert (lock.predecessor["process"], lock.predecessor["keeper"]) == (process.pid, 17)
    lock.release()


@pytest.mark.processes
def test_a_lease_of_another_host_is_free_once_it_is_not_heard_of(tmp_path: Path) -> None:
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "kind").write_text("lease 2\n")
    process = holder(tmp_path, host="node7")
    lock = Lock(tmp_path, "part", "part")
    for _ in range(8):
        assert not lock.acquire()
        assert running(tmp_path)[0]["host"] == "node7"
        time.sleep(0.5)  # it is heard of, for longer than a lease
    end(process)
    assert not lock.acquire(), "from here nobody can know that it is dead"
    started = time.monotonic()
    while not lock.acquire():
        assert time.monotonic() - started < 20
        time.sleep(0.1)
    assert time.monotonic() - started > 1
    assert json.loads((tmp_path / "locks" / "part.json").read_text())["process"] == os.getpid()
    lock.release()


@pytest.mark.processes
def test_a_process_that_stood_still_for_longer_than_its_lease_stops_its_work(tmp_path: Path) -> None:
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "kind").write_text("lease 2\n")
    process = holder(tmp_path, host="node7")
    process.send_signal(signal.SIGSTOP)
    lock = Lock(tmp_path, "part", "part")
    assert lock.acquire(wait=True)
    process.send_signal(signal.SIGCONT)
    printed, complained = process.communicate(timeout=30)
    assert printed == "interrupted\n"
    assert "part.lock: another process" in complained
    assert running(tmp_path)[0]["process"] == os.getpid(), "it took nothing of its successor's away"
    lock.release()


@pytest.mark.processes
def test_no_child_holds_a_lock_of_its_parent(folder: Path) -> None:
    """Loaders are forked while a job's lock is held."""
    lock = Lock(folder, "part", "part")
    lock.acquire()
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    child.start()

    def its_locks() -> list[Path]:
        """Those that it has open at this moment: it closes files of its own while they are read here."""
        found = []
        for path in Path(f"/proc/{child.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                if os.readlink(path).endswith(".lock"):
                    found.append(path)
        return found

    deadline = time.monotonic() + 10
    while its_locks():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    lock.release()
    other = Lock(folder, "part", "part")
    assert other.acquire()
    other.release()
    child.kill()
    child.join()
