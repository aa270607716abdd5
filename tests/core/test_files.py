"""What is stored takes the place of a file, never through a link, and one living process writes a part of a folder."""

import errno
import multiprocessing
import os
import pickle
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from socket import gethostname

import pytest
from filelock import FileLock, Timeout

from levelfield.core.errors import UserError, refused_file
from levelfield.core.files import QUIET_SECONDS, locked, write_atomically
from levelfield.core.ledger import Evaluation, begin


def test_a_planted_link_is_replaced_and_a_ledger_that_is_one_is_refused(tmp_path: Path) -> None:
    (precious := tmp_path / "precious").write_text("")
    (folder := tmp_path / "study").mkdir()
    (folder / "results.csv").symlink_to(precious)
    write_atomically(folder / "results.csv", b"method\n")
    assert (folder / "results.csv").read_bytes() == b"method\n"
    assert not (folder / "results.csv").is_symlink()
    assert [path.name for path in folder.iterdir()] == ["results.csv"]
    (folder / "other").touch()
    assert (folder / "results.csv").stat().st_mode == (folder / "other").stat().st_mode
    (folder / "ledger.jsonl").symlink_to(precious)
    with pytest.raises(UserError, match=r"ledger\.jsonl"):
        begin(Evaluation("glyphs", ["00" * 32], "levelfield test"), folder)
    assert precious.read_text() == ""


def test_many_that_write_one_file_leave_a_whole_one(tmp_path: Path) -> None:
    path, contents = tmp_path / "index", {bytes([number]) * 100_000 for number in range(8)}

    def write(content: bytes) -> None:
        for _ in range(40):
            write_atomically(path, content)
            assert path.read_bytes() in contents

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, contents))
    assert [file.name for file in tmp_path.iterdir()] == ["index"]


def test_the_next_writer_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    owners = (("index", ended.pid), ("index", os.getppid()), ("index2", ended.pid))
    dead, alive, other = (tmp_path / f".{name}.{gethostname()}.{process}.00.tmp" for name, process in owners)
    for file in (dead, alive, other):
        file.write_bytes(b"half a")
    write_atomically(tmp_path / "index", b"whole")
    assert {*tmp_path.iterdir()} == {tmp_path / "index", alive, other}


def test_a_refused_file_is_named_by_another_process_too(tmp_path: Path) -> None:
    refused = refused_file(OSError(errno.ENOSPC, "No space left"), tmp_path)
    again = pickle.loads(pickle.dumps(refused))
    assert (str(again), again.strerror) == (str(refused), "No space left")


FORK = multiprocessing.get_context("fork")


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[multiprocessing.process.BaseProcess]:
    """A process that has the lock of `part` for a while."""
    held = FORK.Event()

    def hold() -> None:
        with locked(tmp_path, "part", "held elsewhere"):
            held.set()
            time.sleep(QUIET_SECONDS + 1)

    (process := FORK.Process(target=hold)).start()
    assert held.wait(60)
    yield process
    process.kill()
    process.join()


@pytest.mark.processes
def test_a_part_has_one_lock_which_a_killed_process_loses(holder, tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "locks" / "part.lock")
    with pytest.raises(Timeout):
        lock.acquire(blocking=False)
    with locked(tmp_path, "other", "other work"):
        pass
    holder.kill()
    holder.join()
    with locked(tmp_path, "part", "again"), pytest.raises(Timeout):
        lock.acquire(blocking=False)
    lock.acquire(blocking=False)


@pytest.mark.processes
def test_who_waits_is_told_for_what(holder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with locked(tmp_path, "part", "rows of few.csv"):
        assert capsys.readouterr().err == "waiting for another process: rows of few.csv\n"


@pytest.mark.processes
def test_no_child_holds_a_lock_of_its_parent(tmp_path: Path) -> None:
    """Loaders are forked while a lock is held."""
    with locked(tmp_path, "part", "part"):
        child = FORK.Process(target=time.sleep, args=(60,))
        child.start()
        deadline, opened = time.monotonic() + 10, Path(f"/proc/{child.pid}/fd")
        while any(path.resolve().suffix == ".lock" for path in opened.iterdir()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    with locked(tmp_path, "part", "part"):
        child.kill()
    child.join()
