"""Read the columns of a CSV file as text, with row numbers."""

import csv
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from levelfield.core.errors import UserError
from levelfield.data.datasets.table_rows import Coded, Rows, TableFile, places_of

NUL = "\udc00"
SEPARATORS = ",;\t|"
# A longer value is probably an unclosed quote.
LONGEST_VALUE = 10_000_000
LONGEST_HEADER = 1_000_000
# Short rows take about 15 times their size in memory.
LARGEST_FILE = 1 << 29


def read_csv(table: Path, wanted: tuple[str, ...], optional: tuple[str, ...] = ()) -> TableFile:
    """The wanted columns (the first has the contents) and the optional ones.

    The file is UTF-8 with a header; values are separated by comma, semicolon, tab or `|`. The number of a row is the
    number of its first line in an editor, so the header is row 1.

    Raises:
        UserError: the table cannot be read, is too large, lacks a wanted column, or has a column twice.
    """
    if table.stat().st_size > LARGEST_FILE:
        separator = _separator(_decoded(table, LONGEST_HEADER), wanted)
        # All columns as text: pyarrow would read the labels 01 and 1 as the same number.
        raise UserError(
            f"{table} is larger than {LARGEST_FILE >> 20} MiB: convert it to Parquet with "
            f"python -c \"from pyarrow import csv, parquet, string; table = '{table}'; "
            f"parse = csv.ParseOptions(delimiter={separator!r}, newlines_in_values=True); "
            "names = csv.open_csv(table, parse_options=parse).schema.names; "
            "convert = csv.ConvertOptions(column_types=dict.fromkeys(names, string())); "
            "parquet.write_table(csv.read_csv(table, parse_options=parse, convert_options=convert), "
            f"'{table.with_suffix('.parquet')}')\""
        )
    rows, problems, passed_over = _read(table, wanted, optional)
    columns: list[Any] = list(zip(*(values for _, values in rows), strict=True)) or [()] * len((*wanted, *optional))
    others = [None if column[:1] == (None,) else Coded.of(column) for column in columns[1:]]
    every = Rows(np.array([number for number, _ in rows], np.int64), list(columns[0]), others)
    return TableFile([every] if rows else [], problems, passed_over)


def csv_columns(table: Path) -> list[str]:
    """Names of the columns; empty if the file cannot be read (reading its rows gives the error)."""
    try:
        content = _decoded(table, LONGEST_HEADER)
    except OSError:
        return []
    return _header(content, _separator(content))


class Row(NamedTuple):
    """A row's number and its values of the requested columns; None for a missing column."""

    number: int
    values: tuple[str | None, ...]


def _read(
    table: Path, wanted: tuple[str, ...], optional: tuple[str, ...]
) -> tuple[list[Row], list[tuple[int, str]], list[str]]:
    """The readable rows, number and problem of each other row, and the ignored columns."""
    content = _decoded(table)
    rows: list[Row] = []
    problems: list[tuple[int, str]] = []
    start = 1
    try:
        with _values_up_to(LONGEST_VALUE):
            separator = _separator(content, wanted)
            reader = _reader(content, separator)
            names = [name.strip() for name in next(reader, [])]
            if any(NUL in name or _strange(name) for name in names):
                raise UserError(f"{table} is not a CSV file in UTF-8: save it as CSV in UTF-8")
            places = places_of(table, names, wanted, optional)
            passed_over = [name or "(no name)" for at, name in enumerate(names) if at not in places]
            while True:
                start = reader.line_num + 1
                values = next(reader, None)
                if values is None:
                    break
                if any(values[len(names) :]):
                    # An unquoted separator shifts the values behind it: the label would be a part of the text.
                    mark = {",": "comma", ";": "semicolon", "\t": "tab"}.get(separator, separator)
                    problems.append(
                        (
                            start,
                            f"{len(values)} values for {len(names)} columns; put double quotes around a value with a "
                            f"{mark}",
                        )
                    )
                elif values:  # not a blank line
                    read = (None if at is None else values[at].strip() if at < len(values) else "" for at in places)
                    rows.append(Row(start, tuple(read)))
            rows = _without_rows_of_rows(rows, problems, separator, len(names), places[1] or 0)
    except csv.Error as error:
        if "field limit" in str(error):
            remedy = f"a value has more than {LONGEST_VALUE:,} characters; shorten it, or close the double quote"
        else:
            remedy = (
                f"a double quote is not closed, or is inside a value ({error}); close it, or write it twice and put "
                "double quotes around the value"
            )
        raise UserError(f"{table}, row {start}: {remedy}") from None
    return rows, problems, passed_over


def _without_rows_of_rows(
    rows: list[Row], problems: list[tuple[int, str]], separator: str, num_columns: int, label_at: int
) -> list[Row]:
    """Drop rows with a value that contains further rows, because its quote is closed in a later row."""
    labels = {row.values[1] for row in rows}

    def is_row(line: str) -> bool:
        values = line.split(separator)  # a space follows a comma in a sentence; no label starts with one
        return '"' not in line and len(values) == num_columns and values[label_at] in labels

    kept = []
    for row in rows:
        lines = max(((value or "").replace("\r\n", "\n").split("\n") for value in row.values), key=len)
        if len(lines) > 1 and all(map(is_row, lines[:-1])):
            reason = f"a value contains the next {len(lines) - 1} rows; close its double quote"
            problems.append((row.number, reason))
        else:
            kept.append(row)
    return kept


def _decoded(table: Path, most: int = -1) -> str:
    """The content of a file, or its first `most` bytes.

    Lone surrogates replace bytes that are not UTF-8, and NUL, at which csv stops. So the rest of the table can be read,
    and the error can name the row.
    """
    with table.open("rb") as file:
        return file.read(most).decode("utf-8-sig", errors="surrogateescape").replace("\0", NUL)


def _strange(name: str) -> bool:
    return any("\ud800" <= letter <= "\udfff" for letter in name)


def _reader(content: str, separator: str) -> Any:
    return csv.reader(io.StringIO(content, newline=""), delimiter=separator, skipinitialspace=True, strict=True)


def _header(content: str, separator: str) -> list[str]:
    """Names of the columns; empty if the separator leaves quotes inside them."""
    try:
        return [name.strip() for name in next(_reader(content[:LONGEST_HEADER], separator), [])]
    except csv.Error:
        return []


def _separator(content: str, wanted: Sequence[str] = ()) -> str:
    """The separator with the most wanted columns, then the most columns; the comma if all are equal."""

    def score(separator: str) -> tuple[int, int]:
        names = {name.lower() for name in _header(content, separator)}
        return len(names.intersection(wanted)), len(names)

    return max(SEPARATORS, key=score)


@contextmanager
def _values_up_to(characters: int) -> Iterator[None]:
    """Set the csv module's limit for a value, by default 131,072 characters for the whole process."""
    before = csv.field_size_limit(characters)
    try:
        yield
    finally:
        csv.field_size_limit(before)
