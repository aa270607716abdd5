"""A folder gets locks that hold in it, and everybody follows what was chosen."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from levelfield.errors import UserError
from levelfield.storage import lock_kind as module
from levelfield.storage.lock import Lock
from levelfield.storage.lock_kind import LEASE_SECONDS, LockKind, check_locks, lock_kind

LEASE = LockKind(LEASE_SECONDS)


def test_a_local_disk_has_the_systems_locks(tmp_path: Path) -> None:
    assert lock_kind(tmp_path / "locks") == LockKind()
    assert (tmp_path / "locks" / "kind").read_text() == "system\n"
    check_locks(tmp_path / "locks")
    assert [path.name for path in (tmp_path / "locks").iterdir()] == ["kind"]


def test_the_process_that_tries_them_runs_nothing_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fcntl.py").write_text("open('planted', 'w').write('run')\n")
    monkeypatch.chdir(tmp_path)
    assert lock_kind(tmp_path / "locks") == LockKind()
    assert not (tmp_path / "planted").exists()


def no_lock_service(*_: object) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


@pytest.mark.parametrize("flock", [no_lock_service, lambda *_: None], ids=["ENOLCK", "of no effect"])
def test_where_the_systems_locks_do_not_hold_there_are_leases(
    flock: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", flock)
    assert lock_kind(tmp_path / "locks") == LEASE
    check_locks(tmp_path / "locks")
    lock, other = Lock(tmp_path, "part", "part"), Lock(tmp_path, "part", "part")
    assert lock.acquire()
    assert not other.acquire()
    lock.release()
    assert other.acquire()
    other.release()


@pytest.mark.parametrize("flock", [no_lock_service, lambda *_: None], ids=["ENOLCK", "of no effect"])
def test_system_locks_that_no_longer_hold_are_one_line(
    flock: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock_kind(tmp_path / "locks")
    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(UserError, match=r"kind .*delete .*locks and start again") as caught:
        check_locks(tmp_path / "locks")
    assert "\n" not in str(caught.value)


def test_a_file_system_that_hosts_share_has_leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though its locks seem to hold: they may be each node's own."""
    monkeypatch.setattr(module, "LOCAL", ("none of this machine's",))
    assert lock_kind(tmp_path / "locks") == LEASE
    monkeypatch.undo()
    assert lock_kind(tmp_path / "locks") == LEASE, "who comes later follows, whatever the folder looks like from there"


def test_two_that_create_one_file_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOCAL", ())
    monkeypatch.setattr(Path, "touch", lambda path, exist_ok=True: path.write_text(""))
    with pytest.raises(UserError, match=r"locks: .*another file system"):
        lock_kind(tmp_path / "locks")


def test_a_damaged_choice_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "kind").write_text("nonsense")
    with pytest.raises(UserError, match=r"kind is damaged: .*delete .*locks and start"):
        lock_kind(tmp_path / "locks")


def test_the_folder_of_a_mount_is_known_by_the_longest_path(monkeypatch: pytest.MonkeyPatch) -> None:
    assert module._is_local(Path("/dev/shm"))
    assert not module._is_local(Path("/proc"))
    assert not module._is_local(Path("/proc") / str(os.getpid()))
