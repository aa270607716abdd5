"""Tables with a label a row, and with a split and a role where they have these columns."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
from jaxtyping import Int

from levelfield.data.datasets.table_file import NUL, read_table
from levelfield.data.index import Role, SampleIndex
from levelfield.errors import UserError

OPTIONAL_COLUMNS = ("split", "role")


class LabelledRow(NamedTuple):
    """A row's number (`read_table`), and what it says; `split` and `role` are None where there is no such column."""

    row: int
    content: str
    label: str
    split: str | None = None
    role: str | None = None


class LabelledRows(NamedTuple):
    """The rows that can be used, a line for each that cannot, and what is passed over."""

    rows: list[LabelledRow]
    problems: list[str]
    left_out: list[str]


def table_index(table: Path, labelled: LabelledRows, keys: Sequence[str] | None = None) -> SampleIndex:
    """The index of a table's rows: labels numbered, the split and the roles of its columns checked.

    Args:
        table: named in errors.
        labelled: from `read_labelled_rows`.
        keys: of the samples; None takes the rows' content.

    Raises:
        UserError: a split or role that is not known, or a class that is in both halves.
    """
    rows = labelled.rows
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
        left_out=tuple(labelled.left_out),
    )


def _test_classes(table: Path, rows: list[LabelledRow], labels: Int[np.ndarray, " samples"]) -> tuple[int, ...] | None:
    if not rows or rows[0].split is None:
        return None
    first_row: dict[int, LabelledRow] = {}
    for row, label in zip(rows, labels.tolist(), strict=True):
        row = row._replace(split=_checked(table, row, "split", ("train", "test")))
        first = first_row.setdefault(label, row)
        if row.split != first.split:
            raise UserError(
                f"{table}, row {row.row}: class {row.label} is in {row.split} here and in {first.split} in row "
                f"{first.row}; put each class into one of them, or rename the column split to have the classes halved"
            )
    return tuple(label for label in sorted(first_row) if first_row[label].split == "test")


def _checked(table: Path, row: LabelledRow, column: str, known: tuple[str, ...]) -> str:
    value = getattr(row, column).lower()
    if value not in known:
        given = f"'{value}'" if value else "empty"
        wanted = " or ".join(name or "nothing" for name in known)
        raise UserError(f"{table}, row {row.row}: {column} is {given}: give {wanted}, or rename the column")
    return value


def read_labelled_rows(table: Path, content_column: str, label_column: str = "label") -> LabelledRows:
    """All rows of the two columns, and of `split` and `role` where they are there, as text.

    Args:
        table: the CSV or Parquet file, see `read_table`.

    Raises:
        UserError: the table is missing, malformed or without rows, or a column is missing or there twice.
    """
    if table.suffix.lower() not in (".csv", ".parquet"):
        raise UserError(f"{table} is neither .csv nor .parquet: give a table in one of these formats")
    wanted = (content_column, label_column)
    if not table.is_file():
        raise UserError(f"no table {table}: give a CSV or Parquet file with the columns {','.join(wanted)}")
    found = read_table(table, wanted, OPTIONAL_COLUMNS)
    if not found.rows and not found.problems:
        raise UserError(f"{table} has no rows: it needs one a sample, with {' and '.join(wanted)}")
    sound, problems = [], found.problems
    for number, values in found.rows:
        row = LabelledRow(number, *values)  # type: ignore[arg-type]  # the two wanted are never None
        fault = content_fault(content_column, row.content) or content_fault(label_column, row.label)
        for column, value in (("path", row.content if content_column == "path" else ""), (label_column, row.label)):
            if not fault and re.search(r"[\r\n]", value):
                fault = f"{column} has several lines; close the double quote that opens it"
        if fault:
            problems.append((number, fault))
        else:
            sound.append(row)
    lines = [f"{table}, row {number}: {fault}" for number, fault in sorted(problems)]
    passed_over = [f"columns passed over: {', '.join(found.passed_over)}"] if found.passed_over else []
    return LabelledRows(sound, lines, passed_over)


def refuse_problems(problems: Sequence[str]) -> None:
    """Raise the first problem and count the others, if there are any."""
    if problems:
        others = f" ({len(problems) - 1} more like this)" if len(problems) > 1 else ""
        raise UserError(problems[0] + others)


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
