"""Reading the columns of a CSV or Parquet file as text, each row with its number."""

import csv
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from levelfield.errors import UserError

NUL = "\udc00"
SEPARATORS = ",;\t|"
# A longer value is a quote that was not closed, or a whole book.
LONGEST_VALUE = 10_000_000
LONGEST_HEADER = 1_000_000


class Row(NamedTuple):
    """A row's number, and its values of the columns that were asked for: None for one that the table does not have."""

    number: int
    values: tuple[str | None, ...]


@dataclass
class TableFile:
    """What a table holds.

    Attributes:
        rows: those that can be read.
        problems: row number and what is wrong of each other one.
        passed_over: names of the columns that nobody asked for.
    """

    rows: list[Row] = field(default_factory=list)
    problems: list[tuple[int, str]] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)


def read_table(table: Path, wanted: tuple[str, str], optional: Sequence[str] = ()) -> TableFile:
    """The two columns wanted and the optional ones; names of columns are compared without case and outer blanks.

    A CSV file is UTF-8 with a header, its values parted by comma, semicolon, tab or `|`. Its rows are numbered as an
    editor numbers the line that each begins in, so that the header is row 1; those of a Parquet file from 1.

    Raises:
        UserError: the table cannot be read, lacks a column wanted, or has a column twice.
    """
    return (_read_parquet if table.suffix.lower() == ".parquet" else _read_csv)(table, wanted, tuple(optional))


def column_names(table: Path) -> list[str]:
    """Names of a table's columns in lower case; none where it cannot be read, of which reading its rows will tell."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        if table.suffix.lower() == ".parquet":
            return [name.strip().lower() for name in parquet.read_schema(table).names]
        content = _decoded(table)
        return [name.lower() for name in _header(content, _separator(content))]
    except (OSError, pa.ArrowException):
        return []


def _places(table: Path, names: Sequence[str], wanted: Sequence[str], optional: Sequence[str]) -> list[int | None]:
    """Where each column stands."""
    known = [name.strip().lower() for name in names]
    for column in (*wanted, *optional):
        if known.count(column) > 1:
            twice = " and ".join(name for name in names if name.strip().lower() == column)
            raise UserError(f"{table} has {known.count(column)} columns {column} ({twice}): rename all but one")
    missing = [column for column in wanted if column not in known]
    if missing:
        raise UserError(
            f"{table} has no column {' and no column '.join(missing)}: it has {', '.join(names) or 'none'}; "
            f"rename them to {','.join(wanted)}"
        )
    return [known.index(column) if column in known else None for column in (*wanted, *optional)]


def _read_csv(table: Path, wanted: tuple[str, str], optional: tuple[str, ...]) -> TableFile:
    content = _decoded(table)
    found = TableFile()
    start = 1
    try:
        with _values_up_to(LONGEST_VALUE):
            separator = _separator(content, wanted)
            reader = _reader(content, separator)
            names = [name.strip() for name in next(reader, [])]
            if any(NUL in name or _strange(name) for name in names):
                raise UserError(f"{table} is not a CSV file in UTF-8: save it as one")
            places = _places(table, names, wanted, optional)
            found.passed_over = [name or "(no name)" for at, name in enumerate(names) if at not in places]
            while True:
                start = reader.line_num + 1
                values = next(reader, None)
                if values is None:
                    break
                if any(values[len(names) :]):
                    # A separator without quotes moves what follows it: the label would be a piece of the text.
                    mark = {",": "comma", ";": "semicolon", "\t": "tab"}.get(separator, separator)
                    found.problems.append(
                        (
                            start,
                            f"{len(values)} values for {len(names)} columns; put a value with a {mark} in it between "
                            "double quotes",
                        )
                    )
                elif values:  # else a blank line
                    read = (None if at is None else values[at].strip() if at < len(values) else "" for at in places)
                    found.rows.append(Row(start, tuple(read)))
            _take_out_rows_of_rows(found, separator, len(names), places[1] or 0)
    except csv.Error as error:
        if "field limit" in str(error):
            remedy = f"it has a value of more than {LONGEST_VALUE:,} characters; shorten it, or close the double quote"
        else:
            remedy = (
                f"a double quote is not closed, or stands within a value ({error}); close it, or write it twice and "
                "put the whole value between double quotes"
            )
        raise UserError(f"{table}, row {start}: {remedy}") from None
    return found


def _take_out_rows_of_rows(found: TableFile, separator: str, num_columns: int, label_at: int) -> None:
    """Rows with a value whose lines are rows by themselves: a quote opens it that a later row's closes."""
    labels = {row.values[1] for row in found.rows}

    def is_row(line: str) -> bool:
        values = line.split(separator)  # a comma in a sentence has a blank after it, which no label begins with
        return '"' not in line and len(values) == num_columns and values[label_at] in labels

    rows, found.rows = found.rows, []
    for row in rows:
        lines = max(((value or "").replace("\r\n", "\n").split("\n") for value in row.values), key=len)
        if len(lines) > 1 and all(map(is_row, lines[:-1])):
            reason = f"a value takes in {len(lines) - 1} rows after it; close the double quote that opens it"
            found.problems.append((row.number, reason))
        else:
            found.rows.append(row)


def _decoded(table: Path) -> str:
    """What is not UTF-8 becomes a lone surrogate, and NUL, at which csv stops, one that no byte becomes.

    So the rest of the table can be read, and the row can be named.
    """
    return table.read_bytes().decode("utf-8-sig", errors="surrogateescape").replace("\0", NUL)


def _strange(name: str) -> bool:
    return any("\ud800" <= letter <= "\udfff" for letter in name)


def _reader(content: str, separator: str) -> Any:
    return csv.reader(io.StringIO(content, newline=""), delimiter=separator, skipinitialspace=True, strict=True)


def _header(content: str, separator: str) -> list[str]:
    """Names of the columns; none where that separator leaves quotes within them."""
    try:
        return [name.strip() for name in next(_reader(content[:LONGEST_HEADER], separator), [])]
    except csv.Error:
        return []


def _separator(content: str, wanted: Sequence[str] = ()) -> str:
    """The one that gives the most of the columns wanted, then the most columns; the comma where all are alike."""

    def score(separator: str) -> tuple[int, int]:
        names = {name.lower() for name in _header(content, separator)}
        return len(names.intersection(wanted)), len(names)

    return max(SEPARATORS, key=score)


@contextmanager
def _values_up_to(characters: int) -> Iterator[None]:
    """The csv module's limit of a value, which is the process' and 131,072 characters otherwise."""
    before = csv.field_size_limit(characters)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _read_parquet(table: Path, wanted: tuple[str, str], optional: tuple[str, ...]) -> TableFile:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(table) as file:
            names = file.schema_arrow.names
            places = _places(table, names, wanted, optional)
            found = file.read(columns=[names[at] for at in places if at is not None])
    except (OSError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{table} is not a readable Parquet file ({reason}): write it again") from None
    for column in found.schema:
        if pa.types.is_nested(column.type):
            raise UserError(f"{table}: the column {column.name} holds {column.type}: give one value a row")
    columns = [
        [None] * found.num_rows if at is None else [_as_text(value) for value in found[names[at]].to_pylist()]
        for at in places
    ]
    rows = [Row(number, values) for number, values in enumerate(zip(*columns, strict=True), start=1)]
    return TableFile(rows, passed_over=[name for at, name in enumerate(names) if at not in places])


def _as_text(value: Any) -> str:
    if value is None or value != value:  # missing, or not a number
        return ""
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="surrogateescape").strip()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # pandas stores a column of whole numbers with gaps as floats
    return str(value).strip()
