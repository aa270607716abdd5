"""Read the lists of a data set: one line per sample, with columns separated by blanks."""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from levelfield.core.errors import UserError


def read_lines(file: Path, remedy: str) -> list[str]:
    """The lines that are not blank; UTF-8 with or without BOM, any newline.

    Raises:
        UserError: the file is missing or is not UTF-8; the message ends with `remedy`.
    """
    try:
        content = file.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {file} ({error.strerror}): {remedy}") from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{file} is not text in UTF-8: {remedy}") from None
    return [line.strip() for line in text.split("\n") if line.strip()]


def read_columns(
    file: Path, columns: Mapping[str, type[int] | type[str]], remedy: str, headers: int = 0
) -> list[tuple[Any, ...]]:
    """The values of each line after the first `headers` lines; whole numbers for columns of int.

    Raises:
        UserError: as `read_lines`, or a line with other columns.
    """
    rows = []
    for line in read_lines(file, remedy)[headers:]:
        words = line.split()
        numbers = [word for word, kind in zip(words, columns.values(), strict=False) if kind is int]
        if len(words) != len(columns) or not all(number.isdecimal() for number in numbers):
            wanted = ", ".join(f"{name} (a whole number)" if kind is int else name for name, kind in columns.items())
            raise UserError(f"{file}: '{line}' instead of {wanted}: {remedy}")
        rows.append(tuple(kind(word) for word, kind in zip(words, columns.values(), strict=True)))
    return rows


def check_listed_once(file: Path, keys: Iterable[str], remedy: str) -> None:
    """Raise UserError if a list names an image twice: it would be its own nearest neighbour."""
    for key, times in Counter(keys).items():
        if times > 1:
            raise UserError(f"{file} names {key} {times} times: {remedy}")
