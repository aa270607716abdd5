"""Files that end with the SHA-256 of their content, so that reading detects damage."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from levelfield.core.atomic import replaced

DIGEST_BYTES = 32
AT_A_TIME = 1 << 20


class CheckedFile:
    """Writes a checked file in parts."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._digest = file, hashlib.sha256()

    def write(self, content: bytes) -> None:
        self._digest.update(content)
        self._file.write(content)

    def end(self) -> None:
        self._file.write(self._digest.digest())


@contextmanager
def replaced_checked(path: Path) -> Iterator[CheckedFile]:
    """`replaced` for a checked file."""
    with replaced(path) as file:
        checked = CheckedFile(file)
        yield checked
        checked.end()


def is_whole(path: Path) -> bool:
    """Whether a file exists and ends with the SHA-256 of the rest; reads the whole file."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            last = file.read(DIGEST_BYTES)
            while content := file.read(AT_A_TIME):
                content = last + content
                digest.update(content[:-DIGEST_BYTES])
                last = content[-DIGEST_BYTES:]
    except FileNotFoundError:
        return False
    return last == digest.digest()
