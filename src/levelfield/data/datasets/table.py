"""Reading a CSV or Parquet table with a label a row."""

import csv
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Int

from levelfield.errors import UserError


class LabelledRow(NamedTuple):
    """A row's number as an editor shows it (the header of a CSV file is row 1), its content and its label."""

    row: int
    content: str
    label: str


def read_labelled_rows(table: Path, content_column: str, label_column: str = "label") -> list[LabelledRow]:
    """All rows of the two columns, as text; a CSV file is UTF-8 with a header, any other columns are passed over.

    Rows of a Parquet table are counted from 1.

    Raises:
        UserError: the table is missing, malformed or without rows, a column is missing, or a value is empty.
    """
    suffix = table.suffix.lower()
    if suffix not in (".csv", ".parquet"):
        raise UserError(f"{table} is neither .csv nor .parquet: give a table in one of these formats")
    if not table.is_file():
        raise UserError(
            f"no table {table}: give a CSV or Parquet file with the columns {content_column},{label_column}"
        )
    wanted = (content_column, label_column)
    rows = _read_csv(table, wanted) if suffix == ".csv" else _read_parquet(table, wanted)
    if not rows:
        raise UserError(f"{table} has no rows: it needs one a sample, with {content_column} and {label_column}")
    for row in rows:
        for column, value in zip(wanted, (row.content, row.label), strict=True):
            if not value:
                raise UserError(f"{table}, row {row.row}: {column} is empty; fill it in or remove the row")
    return rows


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


def _read_csv(table: Path, wanted: tuple[str, str]) -> list[LabelledRow]:
    try:
        with table.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            _check_columns(table, wanted, [name.strip() for name in reader.fieldnames or []])
            reader.fieldnames = [name.strip() for name in reader.fieldnames or []]
            return [
                LabelledRow(reader.line_num, *((values[column] or "").strip() for column in wanted))
                for values in reader
            ]
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{table} is not a CSV file in UTF-8 ({error}): save it as one") from None


def _read_parquet(table: Path, wanted: tuple[str, str]) -> list[LabelledRow]:
    try:
        frame = pd.read_parquet(table)
    except (OSError, ValueError) as error:
        raise UserError(f"{table} is not a readable Parquet file ({error}): write it again") from None
    _check_columns(table, wanted, [str(name) for name in frame.columns])
    columns = [[_as_text(value) for value in frame[column]] for column in wanted]
    return [LabelledRow(number + 1, *values) for number, values in enumerate(zip(*columns, strict=True))]


def _as_text(value: Any) -> str:
    if pd.isna(value):
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # pandas holds a column of integers with gaps as floats
    return str(value).strip()
