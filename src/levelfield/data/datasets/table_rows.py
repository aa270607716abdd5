"""The output of a table reader: some rows at a time, with row numbers and with values as text."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from levelfield.core.errors import UserError


class Coded(NamedTuple):
    """A column with repeated values: the different values, and the value number of each row."""

    names: list[str]
    codes: Int[np.ndarray, " rows"]

    @classmethod
    def of(cls, values: Iterable[str]) -> "Coded":
        code_of: dict[str, int] = {}
        codes = [code_of.setdefault(value, len(code_of)) for value in values]
        return cls(list(code_of), np.array(codes, np.int64))

    def take(self, kept: Int[np.ndarray, " kept"]) -> "Coded":
        return self._replace(codes=self.codes[kept])


class Rows(NamedTuple):
    """Some rows, in order.

    Attributes:
        numbers: row numbers, as an editor or a Parquet reader counts them.
        contents: the column whose values rarely repeat: texts or paths.
        others: the other columns; None for a missing column.
    """

    numbers: Int[np.ndarray, " rows"]
    contents: list[str]
    others: list[Coded | None]


@dataclass
class TableFile:
    """The content of a table.

    Attributes:
        rows: the readable rows, as an iterator.
        problems: row number and fault of each other row.
        passed_over: names of the ignored columns.
    """

    rows: Iterable[Rows]
    problems: list[tuple[int, str]] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)


def places_of(table: Path, names: Sequence[str], wanted: Sequence[str], optional: Sequence[str]) -> list[int | None]:
    """Position of each column; names are compared without case and outer blanks.

    Raises:
        UserError: a wanted column is missing, or a column is repeated.
    """
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
