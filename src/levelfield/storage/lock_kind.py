"""The kind of locks in a folder: the system's on a local disk, leases on a file system that several hosts share.

Two processes with different kinds of locks do not see each other. The first process writes the kind of a folder into
`locks/kind`, and all others use it.
"""

import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import filelock

from levelfield.errors import UserError

KIND = "kind"
# Other hosts consider the holder of a lease dead if it does not renew the lease for this long.
LEASE_SECONDS = 60.0
# File systems of one machine, where flock excludes every other process.
LOCAL = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs", "tmpfs", "ramfs", "overlay")
# A second process tries to take a lock that this one holds.
TRY = "import fcntl, sys; fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX | fcntl.LOCK_NB)"


@dataclass(frozen=True)
class LockKind:
    """`lease_seconds` of leases; None for the system's locks."""

    lease_seconds: float | None = None

    def __str__(self) -> str:
        return "system" if self.lease_seconds is None else f"lease {self.lease_seconds:g}"


def lock_kind(locks: Path) -> LockKind:
    """The kind of locks in the folder `locks`; chooses and writes it if there is none.

    Raises:
        UserError: no kind of lock works there, or `kind` is damaged.
    """
    path = locks / KIND
    kind = _read(path)
    if kind is None:
        locks.mkdir(parents=True, exist_ok=True)
        kind = LockKind() if _is_local(locks) and _system_locks_hold(locks) else LockKind(LEASE_SECONDS)
        if kind.lease_seconds is not None:
            _check_exclusive_creation(locks)
        try:
            with open(path, "x") as file:
                file.write(f"{kind}\n")
        except FileExistsError:
            kind = _read(path)
            assert kind is not None
    return kind


def check_locks(locks: Path) -> None:
    """Test the locks of a folder before use.

    Raises:
        UserError: a second process gets a lock that this one holds.
    """
    if lock_kind(locks).lease_seconds is not None:
        _check_exclusive_creation(locks)
    elif not (_is_local(locks) and _system_locks_hold(locks)):
        raise UserError(
            f"{locks}: the system's locks do not work here (perhaps several hosts share this file system), but "
            f"{locks / KIND} names them: stop all processes of this folder, delete {locks} and start again"
        )


def _read(path: Path) -> LockKind | None:
    """The kind in the file; None if the file is missing."""
    for _ in range(100):
        try:
            words = path.read_text().split()
        except FileNotFoundError:
            return None
        if words == ["system"]:
            return LockKind()
        if len(words) == 2 and words[0] == "lease":
            with suppress(ValueError):
                return LockKind(float(words[1]))
        time.sleep(0.02)  # another process may be writing it
    raise UserError(f"{path} is damaged: stop all processes of this folder, delete {path.parent} and start again")


def _is_local(folder: Path) -> bool:
    """Whether only this host can reach a folder; true if the system gives no answer."""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return True
    mounts = []
    for line in lines:
        before, _, after = line.partition(" - ")
        mounts.append((before.split()[4].encode().decode("unicode_escape"), after.split()[0]))
    resolved = folder.resolve()
    # The last file system mounted in one place is on top.
    _, kind = max(
        ((place, kind) for place, kind in mounts if resolved.is_relative_to(place)), key=lambda mount: len(mount[0])
    )
    return kind in LOCAL


def _system_locks_hold(locks: Path) -> bool:
    probe = locks / f".probe-{os.uname().nodename}-{os.getpid()}"
    lock = filelock.FileLock(probe, thread_local=False, fallback_to_soft=False)
    try:
        with lock.acquire(blocking=False):
            done = subprocess.run([sys.executable, "-I", "-S", "-c", TRY, str(probe)], capture_output=True)
    except (OSError, NotImplementedError):  # ENOLCK, ENOSYS: this file system has no locks
        return False
    finally:
        probe.unlink(missing_ok=True)
    return b"BlockingIOError" in done.stderr


def _check_exclusive_creation(locks: Path) -> None:
    probe = locks / f".probe-{os.uname().nodename}-{os.getpid()}"
    try:
        probe.touch(exist_ok=False)
        with suppress(FileExistsError):
            probe.touch(exist_ok=False)
            raise UserError(
                f"{locks}: locks do not work on this file system (two processes can create the same file); choose a "
                "folder on another file system"
            )
    finally:
        probe.unlink(missing_ok=True)
