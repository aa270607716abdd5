"""Files that are complete or absent even if a process is killed; JSON, hashes, and locks between processes."""

import hashlib
import json
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from socket import gethostname
from typing import Any, BinaryIO

import filelock

from levelfield.core.errors import refused_file
from levelfield.core.processes import is_running

LOCKS = "locks"
QUIET_SECONDS = 2.0  # of waiting for a lock before a message


@contextmanager
def explain_write_errors(path: Path) -> Iterator[None]:
    """Raise a UserError with the name of the file if the disk is full or the permission is missing."""
    try:
        yield
    except OSError as error:
        if (refused := refused_file(error, path)) is None:
            raise
        raise refused from error


def make_durable(path: Path) -> None:
    """Wait until the content of a file, or the names in a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """A temporary file next to `path`, of each writer its own, that replaces it or its link once it is on disk."""
    for left in path.parent.glob(f"{escape(f'.{path.name}.{gethostname()}')}.*.*.tmp"):  # by killed processes
        process = left.name.split(".")[-3]
        if process.isdecimal() and not is_running(int(process)):
            left.unlink(missing_ok=True)
    temporary = path.with_name(f".{path.name}.{gethostname()}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    make_durable(path.parent)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file that is complete or absent, or raise a UserError."""
    with explain_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced(path) as file:
            file.write(content)


def read_json(path: Path) -> Any:
    """The content of a JSON file; None if it is missing, damaged or incomplete."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write JSON atomically; floats keep every bit."""
    write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())


def file_hash(path: Path) -> str:
    """SHA-256 of a file, which may be larger than memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def locked(folder: Path, part: str, title: str) -> Iterator[None]:
    """Hold the lock of one part of a folder, which a dead process loses. A process that waits prints its `title`."""
    lock = filelock.FileLock(folder / LOCKS / f"{part}.lock", thread_local=False)
    with explain_write_errors(Path(lock.lock_file)):
        try:
            lock.acquire(QUIET_SECONDS)
        except filelock.Timeout:
            print(f"waiting for another process: {title}", file=sys.stderr)
            lock.acquire()
    try:
        yield
    finally:
        lock.release()
