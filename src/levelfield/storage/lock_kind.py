"""Which locks hold in a folder: the system's on a local disk, leases on a file system that several hosts share.

Two processes that lock in different ways do not see each other, so the first one writes down, in `locks/kind`, which
locks a folder has, and all others follow it.
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
# A holder of a lease that was not heard of for so long is taken for dead by other hosts.
LEASE_SECONDS = 60.0
# File systems of one machine, where flock is exclusive among all that can reach a file.
LOCAL = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs", "tmpfs", "ramfs", "overlay")
# What a second process does with a lock that this one holds.
TRY = "import fcntl, sys; fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX | fcntl.LOCK_NB)"


@dataclass(frozen=True)
class LockKind:
    """`lease_seconds` of a folder whose locks are leases; None where they are the system's."""

    lease_seconds: float | None = None

    def __str__(self) -> str:
        return "system" if self.lease_seconds is None else f"lease {self.lease_seconds:g}"


def lock_kind(locks: Path) -> LockKind:
    """The kind of locks in the folder `locks`, chosen and written there first if nobody has.

    Raises:
        UserError: no kind of lock holds there, or `kind` is damaged.
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
    """Try the locks of a folder before anything rests on them.

    Raises:
        UserError: a second process gets a lock that this one holds.
    """
    if lock_kind(locks).lease_seconds is not None:
        _check_exclusive_creation(locks)
    elif not (_is_local(locks) and _system_locks_hold(locks)):
        raise UserError(
            f"{locks}: the system's locks do not hold here (several hosts may share this file system), yet "
            f"{locks / KIND} names them: stop what works in this folder, delete {locks} and start again"
        )


def _read(path: Path) -> LockKind | None:
    """What `kind` says; None where it is not there."""
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
        time.sleep(0.02)  # the process that made it is just writing
    raise UserError(f"{path} is damaged: stop what works in this folder, delete {path.parent} and start again")


def _is_local(folder: Path) -> bool:
    """Whether no other host can reach a folder; taken to be so where the system does not tell."""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return True
    mounts = []
    for line in lines:
        before, _, after = line.partition(" - ")
        mounts.append((before.split()[4].encode().decode("unicode_escape"), after.split()[0]))
    resolved = folder.resolve()
    # The last of those mounted in one place lies on top.
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
    except (OSError, NotImplementedError):  # ENOLCK, ENOSYS: this file system knows no locks
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
                f"{locks}: a second process gets a lock that is held, for this file system lets two create one file; "
                "choose a folder on another one"
            )
    finally:
        probe.unlink(missing_ok=True)
