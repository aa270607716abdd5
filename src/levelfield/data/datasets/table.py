"""Reading a CSV or Parquet table with a label a row, and with a split and a role where it has these columns."""

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd
from jaxtyping import Int

from levelfield.data.datasets.base import Role, SampleIndex
from levelfield.errors import UserError

NUL = "\udc00"
OPTIONAL_COLUMNS = ("split", "role")


class LabelledRow(NamedTuple):
    """A row's number as an editor shows it (the header of a CSV file is row 1), and what it says.

    `split` and `role` are None where the table has no such column.
    """

    row: int
    content: str
    label: str
    split: str | None = None
    role: str | None = None


def table_index(table: Path, rows: list[LabelledRow], keys: Sequence[str] | None = None) -> SampleIndex:
    """The index of a table's rows: labels numbered, the split and the roles of its columns checked.

    Args:
        table: named in errors.
        rows: from `read_labelled_rows`.
        keys: of the samples; None takes the rows' content.

    Raises:
        UserError: a split or role that is not known, or a class that is in both halves.
    """
    labels, class_names = number_classes([row.label for row in rows])
    roles = None
    if rows and rows[0].role is not None:
        roles = tuple(cast("Role", _checked(table, row, "role", ("query", "gallery", ""))) for row in rows)
    return SampleIndex(
        tuple(row.content for row in rows) if keys is None else tuple(keys),
        labels,
        class_names,
        test_classes=_test_classes(table, rows, labels),
        roles=roles,
    )


def _test_classes(table: Path, rows: list[LabelledRow], labels: Int[np.ndarray, " samples"]) -> tuple[int, ...] | None:
    if not rows or rows[0].split is None:
        return None
    first_row: dict[int, LabelledRow] = {}
    for row, label in zip(rows, labels.tolist(), strict=True):
        split = _checked(table, row, "split", ("train", "test"))
        first = first_row.setdefault(label, row)
        if split != first.split:
            raise UserError(
                f"{table}, row {row.row}: class {row.label} is in {split} here and in {first.split} in row "
                f"{first.row}; put each class into one of them, or rename the column split to have the classes halved"
            )
    return tuple(label for label in sorted(first_row) if first_row[label].split == "test")


def _checked(table: Path, row: LabelledRow, column: str, known: tuple[str, ...]) -> str:
    value = getattr(row, column)
    if value not in known:
        given = f"'{value}'" if value else "empty"
        wanted = " or ".join(name or "nothing" for name in known)
        raise UserError(f"{table}, row {row.row}: {column} is {given}: give {wanted}, or rename the column")
    return value


def read_labelled_rows(
    table: Path, content_column: str, label_column: str = "label", problems: list[str] | None = None
) -> list[LabelledRow]:
    """All rows of the two columns, and of `split` and `role` where they are there, as text.

    A CSV file is UTF-8 with a header; any other columns are passed over.

    Rows of a Parquet table are counted from 1.

    Args:
        table: the CSV or Parquet file.
        content_column: of the samples.
        label_column: of their labels.
        problems: gets a line for each row that cannot be used and is left out; None raises the first.

    Raises:
        UserError: the table is missing, malformed or without rows, a column is missing, or a row cannot be used.
    """
    suffix = table.suffix.lower()
    if suffix not in (".csv", ".parquet"):
        raise UserError(f"{table} is neither .csv nor .parquet: give a table in one of these formats")
    if not table.is_file():
        raise UserError(
            f"no table {table}: give a CSV or Parquet file with the columns {content_column},{label_column}"
        )
    wanted = (content_column, label_column)
    found: list[str] = []
    rows = _read_csv(table, wanted, found) if suffix == ".csv" else _read_parquet(table, wanted)
    if not rows and not found:
        raise UserError(f"{table} has no rows: it needs one a sample, with {content_column} and {label_column}")
    sound = []
    for row in rows:
        faults = (content_fault(column, value) for column, value in zip(wanted, (row.content, row.label), strict=True))
        fault = next(filter(None, faults), "")
        if fault:
            found.append(f"{table}, row {row.row}: {fault}")
        else:
            sound.append(row)
    if found and problems is None:
        raise UserError(found[0])
    if problems is not None:
        problems += found
    return sound


def content_fault(column: str, content: str) -> str:
    """What is wrong with a value that was decoded with `surrogateescape`, and the remedy; empty where nothing is."""
    if not content:
        return f"{column} is empty; fill it in or remove the row"
    if "\0" in content or NUL in content:
        return f"{column} has a NUL byte; remove it"
    strange = re.search("[\ud800-\udfff]", content)
    if strange:
        return f"{column} is not UTF-8 (byte 0x{ord(strange.group()) & 0xFF:02X}); save the file as UTF-8"
    return ""


def number_classes(labels: list[str]) -> tuple[Int[np.ndarray, " samples"], tuple[str, ...]]:
    """Labels (N,) int64 and class names in order: by number where all are whole numbers, else by name."""
    names = set(labels)
    if all(name.removeprefix("-").isdecimal() for name in names):
        class_names = sorted(names, key=lambda name: (int(name), name))
    else:
        class_names = sorted(names)
    label_of = {name: label for label, name in enumerate(class_names)}
    return np.array([label_of[name] for name in labels], dtype=np.int64), tuple(class_names)


def _check_columns(table: Path, wanted: tuple[str, str], found: list[str]) -> None:
    missing = [column for column in wanted if column not in found]
    if missing:
        raise UserError(
            f"{table} has no column {' and no column '.join(missing)}: it has {', '.join(found) or 'none'}; "
            f"rename them to {','.join(wanted)}"
        )


def _read_csv(table: Path, wanted: tuple[str, str], problems: list[str]) -> list[LabelledRow]:
    # What is not UTF-8 becomes a lone surrogate, and NUL, at which csv stops, one that no byte becomes: so the rest of
    # the table can be read, and the row can be named.
    content = table.read_bytes().decode("utf-8-sig", errors="surrogateescape").replace("\0", NUL)
    rows = []
    try:
        reader = csv.DictReader(io.StringIO(content, newline=""), skipinitialspace=True)
        reader.fieldnames = found = [name.strip() for name in reader.fieldnames or []]
        if any(content_fault("", name) for name in found if name):
            raise UserError(f"{table} is not a CSV file in UTF-8: save it as one")
        _check_columns(table, wanted, found)
        columns = (*wanted, *OPTIONAL_COLUMNS)
        for values in reader:
            surplus: Any = values.get(cast("str", None))  # what csv calls the values past the last column
            if any(surplus or ()):
                # An unquoted comma moves what follows it: the label would be a piece of the text.
                problems.append(
                    f"{table}, row {reader.line_num}: {len(found) + len(surplus)} values for {len(found)} columns; "
                    "put a value with a comma in it between double quotes"
                )
                continue
            stripped: Any = ((values[column] or "").strip() if column in found else None for column in columns)
            rows.append(LabelledRow(reader.line_num, *stripped))
    except csv.Error as error:
        raise UserError(f"{table} is not a CSV file ({error}): save it as one") from None
    return rows


def _read_parquet(table: Path, wanted: tuple[str, str]) -> list[LabelledRow]:
    try:
        frame = pd.read_parquet(table)
    except (OSError, ValueError) as error:
        raise UserError(f"{table} is not a readable Parquet file ({error}): write it again") from None
    _check_columns(table, wanted, [str(name) for name in frame.columns])
    columns = {
        column: [_as_text(value) for value in frame[column]] if column in frame.columns else [None] * len(frame)
        for column in (*wanted, *OPTIONAL_COLUMNS)
    }
    return [LabelledRow(number, *values) for number, values in enumerate(zip(*columns.values(), strict=True), start=1)]


def _as_text(value: Any) -> str:
    if pd.isna(value):
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # pandas holds a column of integers with gaps as floats
    return str(value).strip()
