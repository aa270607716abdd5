"""Files that are either complete or absent, even if the process is killed: write a temporary file, fsync, rename.

The standard library has no such function, and the package atomicwrites is no longer maintained.
"""

import json
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from levelfield.core.errors import refused_file
from levelfield.core.processes import is_running

TEMPORARY = ".tmp"  # a killed process may leave such files


@contextmanager
def storing(path: Path) -> Iterator[None]:
    """Add the name of the file to an error of writing.

    Raises:
        UserError: the disk is full, the file is too large, or the permission is missing.
    """
    try:
        yield
    except OSError as error:
        refused = refused_file(error, path)
        if refused is None:
            raise
        raise refused from error


def make_durable(path: Path) -> None:
    """Wait until the content of a file, or the names in a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def new_file(path: Path) -> BinaryIO:
    """Create a file. An earlier file or link of this name is removed, not written to."""
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb")


def without_links(path: str, flags: int) -> int:
    """An `opener` of `open` that follows no link."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


@contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """A temporary file next to `path` that replaces it once it is complete and on disk.

    Each writer has its own temporary file. If several processes write without a lock, the last one wins.
    """
    _remove_left_over(path)
    temporary = path.with_name(temporary_name(path.name, os.getpid()))
    try:
        with new_file(temporary) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    make_durable(path.parent)


def temporary_name(name: str, process: int) -> str:
    """The name of a new temporary file of a process: `.results.csv.node1.4711.9f3a61c2.tmp`."""
    return f".{name}.{_host()}.{process}.{secrets.token_hex(4)}{TEMPORARY}"


def _remove_left_over(path: Path) -> None:
    """Remove temporary files of killed processes of this host."""
    begins = f".{path.name}.{_host()}."
    with suppress(FileNotFoundError):
        for name in os.listdir(path.parent):
            if name.startswith(begins) and name.endswith(TEMPORARY):
                process = name.removeprefix(begins).partition(".")[0]
                if process.isdecimal() and not is_running(int(process)):
                    path.with_name(name).unlink(missing_ok=True)


def _host() -> str:
    return socket.gethostname().replace("/", "_")[:64]


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file that is complete or absent.

    Raises:
        UserError: the system cannot store it.
    """
    with storing(path):
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
