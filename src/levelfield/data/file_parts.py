"""Files on this machine, and in object stores and on servers by what fsspec knows, read in parts."""

import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from levelfield.errors import UserError


class LocalFile:
    """A file on this machine of which processes read parts side by side; closed when nobody holds this any more."""

    def __init__(self, path: str | Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)

    def read(self, start: int, size: int) -> bytes:
        """The bytes of a part; fewer where the file ends before."""
        return os.pread(self._descriptor, size, start)


def is_remote(path: str) -> bool:
    return "://" in path


def read_part(path: str, start: int, size: int) -> bytes:
    """The bytes of a part; fewer where the file ends before. Loader processes read one file side by side.

    Raises:
        UserError: the file cannot be read.
    """
    with _readable(path):
        if is_remote(path):
            system, name = _system_of(path)
            return system.cat_file(name, start=start, end=start + size)
        return _opened(path, os.stat(path).st_mtime_ns).read(start, size)


@contextmanager
def whole_file(path: str) -> Iterator[IO[bytes]]:
    """The file, open to be read.

    Raises:
        UserError: it cannot be opened.
    """
    with _readable(path):
        if is_remote(path):
            system, name = _system_of(path)
            file = system.open(name, "rb")
        else:
            file = Path(path).open("rb")  # noqa: SIM115 # closed below
    with file:
        yield file


def version_of(path: str) -> list[Any]:
    """What is different once the file has changed: size and time, or what its server says of it.

    Raises:
        UserError: there is no such file.
    """
    with _readable(path):
        if is_remote(path):
            system, name = _system_of(path)
            return [path, sorted((key, str(value)) for key, value in system.info(name).items())]
        status = os.stat(path)
        return [path, status.st_size, status.st_mtime_ns]


def files_in(folder: str, suffix: str) -> list[str]:
    """The files in a folder whose names end so, in order."""
    with _readable(folder):
        if not is_remote(folder):
            return sorted(entry.path for entry in os.scandir(folder) if entry.name.endswith(suffix))
        system, name = _system_of(folder)
        return sorted(system.unstrip_protocol(file) for file in system.glob(f"{name.rstrip('/')}/*{suffix}"))


def _system_of(path: str) -> tuple[Any, str]:
    """What reads a path, and its name there; fsspec gives each process one of its own."""
    from fsspec.core import url_to_fs  # takes its time, which files on this machine should not cost

    return url_to_fs(path)


@lru_cache(maxsize=64)
def _opened(path: str, modified: int) -> LocalFile:
    return LocalFile(path)


@contextmanager
def _readable(path: str) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # each store has errors of its own
        reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
        remedy = (
            "install what fsspec asks for"
            if isinstance(error, ImportError)
            else "look after the path and the connection"
        )
        raise UserError(f"cannot read {path} ({reason}): {remedy}") from None
