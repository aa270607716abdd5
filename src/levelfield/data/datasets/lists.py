"""Read the lists of a data set: one line per sample, with columns separated by blanks."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from levelfield.errors import UserError


def read_lines(file: Path, remedy: str) -> list[tuple[int, str]]:
    """Row number (from 1) and text of each line that is not blank; UTF-8 with or without BOM, any newline.

    Raises:
        UserError: the file is missing or is not UTF-8; the message ends with `remedy`.
    """
    try:
        content = file.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {file} ({error.strerror}): {remedy}") from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        row = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{file}, row {row} is not text in UTF-8: {remedy}") from None
    lines = text.replace("\r\n", "\n").split("\n")
    return [(row, line.strip()) for row, line in enumerate(lines, start=1) if line.strip()]


def read_columns(
    file: Path, columns: Mapping[str, type[int] | type[str]], remedy: str, headers: int = 0
) -> list[tuple[int, tuple[Any, ...]]]:
    """Row number and values of each line after the first `headers` lines; whole numbers for columns of int.

    Raises:
        UserError: as `read_lines`, or a line with other columns.
    """
    rows = []
    for row, line in read_lines(file, remedy)[headers:]:
        words = line.split()
        numbers = [word for word, kind in zip(words, columns.values(), strict=False) if kind is int]
        if len(words) != len(columns) or not all(number.isdecimal() for number in numbers):
            wanted = ", ".join(f"{name} (a whole number)" if kind is int else name for name, kind in columns.items())
            raise UserError(f"{file}, row {row}: '{line}' instead of {wanted}: {remedy}")
        rows.append((row, tuple(kind(word) for word, kind in zip(words, columns.values(), strict=True))))
    return rows


def check_listed_once(file: Path, keys: Iterable[tuple[int, str]], remedy: str) -> None:
    """Raise an error if a list names an image twice: it would be its own nearest neighbour.

    Args:
        keys: row number and image of each line.

    Raises:
        UserError: names both rows.
    """
    first_row: dict[str, int] = {}
    for row, key in keys:
        if key in first_row:
            raise UserError(f"{file}, row {row}: {key} is already in row {first_row[key]}: {remedy}")
        first_row[key] = row
