"""Tables with one label per row, and optional columns split and role."""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import cast

import numpy as np
from jaxtyping import Int

from levelfield.core.errors import UserError
from levelfield.data.datasets.csv_file import NUL, csv_columns, read_csv
from levelfield.data.datasets.kept_rows import LabelledRows, rows_once
from levelfield.data.datasets.parquet_file import num_rows, parquet_columns, read_parquet
from levelfield.data.datasets.table_rows import Coded, Rows, TableFile
from levelfield.data.index import Role, SampleIndex
from levelfield.data.strings import Keys, Strings, StringsWriter

OPTIONAL_COLUMNS = ("split", "role")
# A Parquet table with more rows is read once into a file for all processes.
MANY = 1_000_000


def table_index(table: Path, labelled: LabelledRows, keys: Sequence[str] | None = None) -> SampleIndex:
    """The index of a table's rows, with numbered labels and checked split and roles.

    Args:
        table: for messages.
        labelled: from `read_labelled_rows`.
        keys: keys of the samples; None takes the contents of the rows.

    Raises:
        UserError: an unknown split or role, or a class in both halves.
    """
    labels, class_names = number_classes(labelled.labels)
    roles = None
    if labelled.roles is not None:
        _refuse_unknown(table, labelled, labelled.roles, "role", ("query", "gallery", ""))
        names = np.array([name.lower() for name in labelled.roles.names], dtype=object)
        roles = cast("tuple[Role, ...]", tuple(names[labelled.roles.codes].tolist()))
    return SampleIndex(
        labelled.contents if keys is None else keys,
        labels,
        class_names,
        test_classes=_test_classes(table, labelled, labels, class_names),
        roles=roles,
        left_out=tuple(labelled.left_out),
    )


def _test_classes(
    table: Path, labelled: LabelledRows, labels: Int[np.ndarray, " samples"], class_names: Sequence[str]
) -> tuple[int, ...] | None:
    if labelled.splits is None:
        return None
    tested = np.array([name.lower() == "test" for name in labelled.splits.names])[labelled.splits.codes]
    classes, first_rows = np.unique(labels, return_index=True)
    others = np.flatnonzero(tested != tested[first_rows][labels])
    row = int(others[0]) if len(others) else len(labels)
    _refuse_unknown(table, labelled, labelled.splits, "split", ("train", "test"), before=row)
    if row < len(labels):
        here, there = ("test", "train") if tested[row] else ("train", "test")
        raise UserError(
            f"{table}, row {labelled.numbers[row]}: class {class_names[labels[row]]} is in {here} here and in {there} "
            f"in row {labelled.numbers[first_rows[labels[row]]]}; put each class into one of them, or rename the "
            "column split to split the classes in halves"
        )
    return tuple(classes[tested[first_rows]].tolist())


def _refuse_unknown(
    table: Path, labelled: LabelledRows, column: Coded, title: str, known: tuple[str, ...], before: int | None = None
) -> None:
    """Raise an error for the first unknown value in the rows up to and including `before`."""
    codes = column.codes if before is None else column.codes[: before + 1]
    unknown = np.array([name.lower() not in known for name in column.names])[codes]
    for row in np.flatnonzero(unknown)[:1].tolist():
        value = column.names[column.codes[row]].lower()
        given = f"'{value}'" if value else "empty"
        wanted = " or ".join(name or "nothing" for name in known)
        raise UserError(
            f"{table}, row {labelled.numbers[row]}: {title} is {given}: give {wanted}, or rename the column"
        )


def column_names(table: Path, nested: bool = True) -> list[str]:
    """Names of a table's columns in lower case; empty if it cannot be read (reading its rows gives the error)."""
    names = parquet_columns(table, nested) if _is_parquet(table) else csv_columns(table)
    return [name.strip().lower() for name in names]


def read_table(table: Path, wanted: tuple[str, ...], optional: tuple[str, ...] = ()) -> TableFile:
    """The columns of a CSV or Parquet file: see `read_csv` and `read_parquet`."""
    return (read_parquet if _is_parquet(table) else read_csv)(table, wanted, optional)


def _is_parquet(table: Path) -> bool:
    return table.suffix.lower() == ".parquet"


def read_labelled_rows(table: Path, content_column: str, label_column: str = "label") -> LabelledRows:
    """All rows of the two columns, and of `split` and `role` if they exist, as text.

    Args:
        table: the CSV or Parquet file: see `read_table`.
        content_column: each `path` may occur once, in any spelling.

    Raises:
        UserError: the table is missing, malformed or without rows, or a column is missing or repeated.
    """
    if table.suffix.lower() not in (".csv", ".parquet"):
        raise UserError(f"{table}: give a table in the format .csv or .parquet")
    wanted = (content_column, label_column)
    if not os.path.isfile(table):
        raise UserError(f"no table {table}: give a CSV or Parquet file with the columns {','.join(wanted)}")
    found = read_table(table, wanted, OPTIONAL_COLUMNS)
    many = _is_parquet(table) and num_rows(table) > MANY
    labelled = rows_once(table, wanted, lambda writer: _checked(table, found, wanted, writer), in_file=many)
    if not len(labelled.numbers) and not labelled.problems:
        raise UserError(f"{table} has no rows: give one row per sample, with {' and '.join(wanted)}")
    return labelled


def read_metadata(table: Path, content_column: str, numbers: Int[np.ndarray, " rows"]) -> dict[str, Coded]:
    """The further columns of a table with one value per row, for the rows with these numbers; no repeated columns.

    Raises:
        UserError: as `read_table`.
    """
    usual = (content_column, "label", *OPTIONAL_COLUMNS)
    found_names = column_names(table, nested=False)
    names = tuple(name for name in found_names if name and name not in usual and found_names.count(name) == 1)
    columns, found = [_Column() for _ in names], [np.empty(0, np.int64)]
    for rows in read_table(table, (content_column, "label"), names).rows:
        found.append(rows.numbers)
        for column, part in zip(columns, rows.others[1:], strict=True):
            if part is not None:
                column.add(part)
    places = np.searchsorted(np.concatenate(found), numbers)
    return {name: column.whole.take(places) for name, column in zip(names, columns, strict=True) if column.whole}


class _Column:
    """Collects the parts of a column; different values are in the order of their first row."""

    def __init__(self) -> None:
        self._code_of: dict[str, int] = {}
        self._codes: list[Int[np.ndarray, " rows"]] = []

    def add(self, part: Coded) -> None:
        codes = [self._code_of.setdefault(name, len(self._code_of)) for name in part.names]
        self._codes.append(np.array(codes, np.int32)[part.codes])

    @property
    def whole(self) -> Coded | None:
        return Coded(list(self._code_of), np.concatenate(self._codes)) if self._codes else None


def _checked(table: Path, found: TableFile, wanted: tuple[str, str], writer: StringsWriter) -> LabelledRows:
    """The usable rows, with their contents in `writer`, and a line for each other row."""
    content_column, label_column = wanted
    numbers, hashes, problems = [np.empty(0, np.int64)], [np.empty(0, np.int64)], found.problems
    columns = [_Column() for _ in (label_column, *OPTIONAL_COLUMNS)]
    for rows in found.rows:
        faults = _faults(rows, content_column, label_column)
        if faults:
            problems += [(int(rows.numbers[position]), fault) for position, fault in faults.items()]
            sound = np.delete(np.arange(len(rows.numbers)), list(faults))
            contents = [rows.contents[position] for position in sound]
            others = [other and other.take(sound) for other in rows.others]
            rows = Rows(rows.numbers[sound], contents, others)
        writer.write(rows.contents)
        numbers.append(rows.numbers)
        for column, part in zip(columns, rows.others, strict=True):
            if part is not None:
                column.add(part)
        if content_column == "path":
            files = (hash(os.path.normpath(path)) for path in rows.contents)
            hashes.append(np.fromiter(files, np.int64, len(rows.contents)))
    labels, splits, roles = (column.whole for column in columns)
    strings, every = writer.strings(), np.concatenate(numbers)
    once, again = _once(strings, every, np.concatenate(hashes)) if content_column == "path" else (None, [])
    chosen = np.arange(len(every)) if once is None else once
    passed_over = (
        [f"columns ignored, except by a loss with metadata: {', '.join(found.passed_over)}"]
        if found.passed_over
        else []
    )
    return LabelledRows(
        numbers=every[chosen],
        contents=Keys(strings.__getitem__, chosen),
        labels=Coded([], np.empty(0, np.int64)) if labels is None else labels.take(chosen),
        splits=splits and splits.take(chosen),
        roles=roles and roles.take(chosen),
        problems=[f"{table}, row {number}: {fault}" for number, fault in (*sorted(problems), *again)],
        left_out=passed_over,
    )


def _faults(rows: Rows, content_column: str, label_column: str) -> dict[int, str]:
    """Position of a row to the fault in its content or label."""
    faults = {}
    together = "".join(rows.contents)  # most tables have no fault, and checking all at once is fast
    if not all(rows.contents) or not together.isascii() or re.search(r"[\0\r\n]", together):
        found = ((position, _fault(content_column, content)) for position, content in enumerate(rows.contents))
        faults = {position: fault for position, fault in found if fault}
    labels = rows.others[0]
    assert labels is not None
    for code, name in enumerate(labels.names):
        if fault := _fault(label_column, name):
            for position in np.flatnonzero(labels.codes == code).tolist():
                faults.setdefault(position, fault)
    return faults


def _fault(column: str, value: str) -> str:
    fault = content_fault(column, value)
    if not fault and column != "text" and re.search(r"[\r\n]", value):
        return f"{column} has several lines; close the double quote that opens it"
    return fault


def _once(
    paths: Strings, numbers: Int[np.ndarray, " rows"], hashes: Int[np.ndarray, " rows"]
) -> tuple[Int[np.ndarray, " once"], list[tuple[int, str]]]:
    """Positions of the rows without repeated files, and number and problem of the others.

    A repeated image would be its own nearest neighbour.
    """
    ordered = np.sort(hashes)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    first_row: dict[str, int] = {}
    again, problems = [], []
    for position in np.flatnonzero(np.isin(hashes, repeated)).tolist() if len(repeated) else ():
        file, number = os.path.normpath(paths[position]), int(numbers[position])
        if file in first_row:
            again.append(position)
            problems.append((number, f"{paths[position]} is already in row {first_row[file]}; remove one"))
        else:
            first_row[file] = number
    return np.delete(np.arange(len(numbers)), again), problems


def refuse_problems(problems: Sequence[str]) -> None:
    """Raise the first problem and count the others, if there are any."""
    if problems:
        others = f" ({len(problems) - 1} more like this)" if len(problems) > 1 else ""
        raise UserError(problems[0] + others)


def content_fault(column: str, content: str) -> str:
    """The fault of a value that was decoded with `surrogateescape`, and the remedy; empty without a fault."""
    if not content:
        return f"{column} is empty; fill it in or remove the row"
    if "\0" in content or NUL in content:
        return f"{column} has a NUL byte; remove it"
    strange = re.search("[\ud800-\udfff]", content)
    if strange:
        return f"{column} is not UTF-8 (byte 0x{ord(strange.group()) & 0xFF:02X}); save the file as UTF-8"
    return ""


def number_classes(labels: Coded | Iterable[str]) -> tuple[Int[np.ndarray, " samples"], tuple[str, ...]]:
    """Labels (N,) int64 and class names in order: by number if all are whole numbers, else by name."""
    coded = labels if isinstance(labels, Coded) else Coded.of(labels)
    occurring = np.unique(coded.codes)
    names = [coded.names[code] for code in occurring]
    if all(name.removeprefix("-").isdecimal() for name in names):
        order = sorted(range(len(names)), key=lambda place: (int(names[place]), names[place]))
    else:
        order = sorted(range(len(names)), key=names.__getitem__)
    label_of = np.zeros(len(coded.names), np.int64)
    label_of[occurring[order]] = np.arange(len(order))
    return label_of[coded.codes], tuple(names[place] for place in order)
