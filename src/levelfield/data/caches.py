"""Cache files below `LEVELFIELD_CACHE`: named by a digest of what they hold, made once, complete or absent."""

import json
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import torch

from levelfield.core.errors import FileRefused, UserError
from levelfield.core.files import Lock, replaced

Held = TypeVar("Held")


class CannotWrite(UserError):  # noqa: N818
    """A cache cannot be written."""


def digest(*values: Any) -> str:
    """SHA-256 of plain values, shortened for the name of a file."""
    return sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:32]


def made_once(
    file: Path, read: Callable[[Path], Held], write: Callable[[], Iterable[bytes]], title: str, option: str
) -> Held:
    """The content of a file. If it is missing or damaged, one process writes it while others wait.

    Args:
        read: raises ValueError for a damaged file.
        write: yields the bytes of the file.
        title: what it is, for users of waiting processes.
        option: the option that needs it, for messages.

    Raises:
        CannotWrite: no space, or no permission.
    """
    found = _read(file, read)
    if found is None:
        try:
            with Lock(file.parent, file.stem, title):
                if (found := _read(file, read)) is None:
                    # Loaders draw, and later draws must not depend on whether the file existed.
                    with torch.random.fork_rng(devices=[]), replaced(file) as opened:
                        for part in _without_os_errors(write()):
                            opened.write(part)
        except (OSError, FileRefused) as error:
            raise CannotWrite(
                f"cannot write the {title} into {file} ({error.strerror}): free space there, set the environment "
                f"variable LEVELFIELD_CACHE to another folder, or give {option} false"
            ) from None
        if found is None:
            found = _read(file, read)
    assert found is not None
    return found


def _read(file: Path, read: Callable[[Path], Held]) -> Held | None:
    try:
        return read(file)
    except (FileNotFoundError, NotADirectoryError, ValueError, EOFError):  # missing or damaged
        return None
    except OSError as error:
        raise UserError(f"cannot read {file} ({error.strerror}): get the permission, or delete it") from None


def _without_os_errors(parts: Iterable[bytes]) -> Iterator[bytes]:
    """`parts`; a sample that cannot be read is no error of writing."""
    try:
        yield from parts
    except OSError as error:
        raise UserError(f"cannot open a sample: {error}") from error
