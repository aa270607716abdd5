"""Rows of a list of samples: their names and faults, and the numbers of their classes."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from levelfield.core.errors import UserError

TABLES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")


class ByName(Mapping[str, Any]):
    """From the name of a row (`row 7`) of a table to its content; both are `Keys`."""

    def __init__(self, names: Any, contents: Sequence[Any]) -> None:
        self.names, self.contents = names, contents

    def __getitem__(self, name: str) -> Any:
        number = name.removeprefix("row ")
        wanted = int(number) if number.isdecimal() and len(number) < 10 else -1
        place = int(np.searchsorted(self.names.rows, np.int32(wanted)))  # another type would copy all numbers
        if place == len(self) or self.names[place] != name:
            raise KeyError(name)
        return self.contents[place]

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)


def content_fault(column: str, content: str) -> str:
    """The fault of a value that was decoded with `surrogateescape`, and the remedy; empty without a fault."""
    if not content:
        return f"{column} is empty; fill it in or remove the row"
    if "\0" in content:
        return f"{column} has a NUL byte; remove it"
    strange = re.search("[\ud800-\udfff]", content)
    return f"{column} is not UTF-8 (byte 0x{ord(strange[0]) & 0xFF:02X}); save the file as UTF-8" if strange else ""


def refuse_problems(problems: Sequence[str]) -> None:
    """Raise the first problem and count the others, if there are any."""
    if problems:
        others = f" ({len(problems) - 1} more like this)" if len(problems) > 1 else ""
        raise UserError(problems[0] + others)


def number_classes(
    names: Sequence[str], codes: Int[np.ndarray, " samples"]
) -> tuple[Int[np.ndarray, " samples"], tuple[str, ...]]:
    """Labels (N,) int64 and class names in order: by number if all are whole numbers, else by name.

    Args:
        names: different names; one without a sample is left out.
        codes: the position of each sample's name.
    """
    occurring = np.flatnonzero(np.bincount(codes, minlength=len(names))).tolist()
    whole = all(names[code].removeprefix("-").isdecimal() for code in occurring)
    order = sorted(occurring, key=lambda code: (int(names[code]) if whole else 0, names[code]))
    label_of = np.zeros(len(names), np.int64)
    label_of[order] = np.arange(len(order))
    return label_of[codes], tuple(names[code] for code in order)
