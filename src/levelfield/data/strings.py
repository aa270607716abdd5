"""Millions of strings in two arrays, each made when it is asked for; loader processes share the arrays."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Int, UInt8

LETTERS, STARTS = "letters.bin", "starts.npy"


class Strings:
    """Strings by position: their letters take what they take in UTF-8, and each 8 bytes.

    Args:
        letters: the bytes of all, one after the other.
        starts: where each begins, and at last where the last one ends.
        folder: that both are mapped from; another process maps them again instead of copying them.
    """

    def __init__(
        self, letters: UInt8[np.ndarray, " bytes"], starts: Int[np.ndarray, " strings+1"], folder: Path | None = None
    ) -> None:
        self.letters, self.starts, self.folder = letters, starts, folder

    @classmethod
    def mapped(cls, folder: Path) -> "Strings":
        """Those that a `StringsWriter` has written into a folder."""
        starts = np.load(folder / STARTS, mmap_mode="r")
        empty = not (folder / LETTERS).stat().st_size  # of which there is no map
        letters = np.empty(0, np.uint8) if empty else np.memmap(folder / LETTERS, np.uint8, "r")
        return cls(np.asarray(letters), np.asarray(starts), folder)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, position: int) -> str:
        return self.letters[self.starts[position] : self.starts[position + 1]].tobytes().decode()

    def __reduce__(self) -> tuple[Any, ...]:
        return (Strings.mapped, (self.folder,)) if self.folder else (Strings, (self.letters, self.starts))


class StringsWriter:
    """Takes strings in turn, into memory or a file.

    Args:
        file: what takes the letters.
        folder: of the file, for `Strings.mapped`; None in memory.
    """

    def __init__(self, file: BinaryIO, folder: Path | None = None) -> None:
        self._file, self._folder = file, folder
        self._lengths = [np.zeros(1, np.int64)]

    @classmethod
    @contextmanager
    def of_folder(cls, folder: Path) -> Iterator["StringsWriter"]:
        """One into files of a folder."""
        with open(folder / LETTERS, "wb") as file:
            yield cls(file, folder)

    def write(self, strings: Sequence[str]) -> None:
        encoded = [string.encode() for string in strings]
        self._file.write(b"".join(encoded))
        self._lengths.append(np.fromiter(map(len, encoded), np.int32, len(encoded)))

    def strings(self) -> Strings:
        """All that were written."""
        starts = np.cumsum(np.concatenate(self._lengths), dtype=np.int64)
        if self._folder is None:
            assert isinstance(self._file, BytesIO)
            return Strings(np.frombuffer(self._file.getbuffer(), np.uint8), starts)
        self._file.flush()
        np.save(self._folder / STARTS, starts)
        return Strings.mapped(self._folder)


class Keys(Sequence[str]):
    """A tuple of strings that are not there before they are asked for.

    Args:
        at: the string of a row.
        rows: which of them, in order.
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
