"""Lazily decoded sequences of millions of strings, whose bytes loader processes share."""

import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Int

LETTERS, STARTS = "letters.bin", "starts.npy"


class _SharedFile:
    """A file that processes read in parallel. It closes when nothing refers to it."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)

    def read(self, start: int, size: int) -> bytes:
        """The bytes of a part; fewer at the end of the file."""
        return os.pread(self._descriptor, size, start)


class Strings:
    """Strings by position: each takes its length in UTF-8 plus 8 bytes.

    Args:
        letters: the bytes of all strings, one after the other; or a file with them, which keeps them out of memory.
        starts: the start of each string, and the end of the last one.
        folder: folder of the file; another process opens the file again instead of copying.
    """

    def __init__(
        self, letters: memoryview | _SharedFile, starts: Int[np.ndarray, " strings+1"], folder: Path | None = None
    ) -> None:
        self.letters, self.starts, self.folder = letters, starts, folder

    @classmethod
    def in_folder(cls, folder: Path) -> "Strings":
        """The strings that a `StringsWriter` has written into a folder."""
        starts = np.asarray(np.load(folder / STARTS, mmap_mode="r"))
        return cls(_SharedFile(folder / LETTERS), starts, folder)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, position: int) -> str:
        start, stop = int(self.starts[position]), int(self.starts[position + 1])
        if isinstance(self.letters, memoryview):
            return str(self.letters[start:stop], "utf-8")
        return self.letters.read(start, stop - start).decode()

    def __reduce__(self) -> tuple[Any, ...]:
        if self.folder is not None:
            return Strings.in_folder, (self.folder,)
        return _in_memory, (bytes(self.letters), self.starts)  # type: ignore[arg-type] # no file without a folder


def _in_memory(letters: bytes, starts: Int[np.ndarray, " strings+1"]) -> Strings:
    return Strings(memoryview(letters), starts)


class StringsWriter:
    """Writes strings one by one, into memory or a file.

    Args:
        file: gets the bytes.
        folder: folder of the file, for `Strings.in_folder`; None in memory.
    """

    def __init__(self, file: BinaryIO, folder: Path | None = None) -> None:
        self._file, self._folder = file, folder
        self._lengths = [np.zeros(1, np.int64)]

    @classmethod
    @contextmanager
    def of_folder(cls, folder: Path) -> Iterator["StringsWriter"]:
        """A writer into the files of a folder."""
        with open(folder / LETTERS, "wb") as file:
            yield cls(file, folder)

    def write(self, strings: Sequence[str]) -> None:
        encoded = [string.encode() for string in strings]
        self._file.write(b"".join(encoded))
        self._lengths.append(np.fromiter(map(len, encoded), np.int32, len(encoded)))

    def strings(self) -> Strings:
        """All written strings."""
        starts = np.cumsum(np.concatenate(self._lengths), dtype=np.int64)
        if self._folder is None:
            assert isinstance(self._file, BytesIO)
            return Strings(self._file.getbuffer(), starts)
        self._file.flush()
        np.save(self._folder / STARTS, starts)
        return Strings.in_folder(self._folder)


class Keys(Sequence[str]):
    """A lazily decoded sequence of strings.

    Args:
        at: returns the string of a row.
        rows: the rows, in order.
    """

    def __init__(self, at: Callable[[int], str], rows: Int[np.ndarray, " keys"]) -> None:
        self.at, self.rows = at, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, position: Any) -> Any:
        if isinstance(position, int | np.integer):
            return self.at(int(self.rows[position]))
        return Keys(self.at, self.rows[position])  # a slice, or positions

    def __iter__(self) -> Iterator[str]:
        return (self.at(int(row)) for row in self.rows)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Keys | tuple):
            return NotImplemented
        return len(self) == len(other) and all(mine == its for mine, its in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash(tuple(self))
