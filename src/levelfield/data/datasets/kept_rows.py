"""The usable rows of a table as arrays; those of a large table are in files that all processes share."""

import io
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
from jaxtyping import Int

from levelfield.core.files import Lock, explain_write_errors, read_json, write_json
from levelfield.core.paths import cache_root
from levelfield.data.datasets.table_rows import Coded
from levelfield.data.hashes import file_state
from levelfield.data.strings import Keys, Strings, StringsWriter

# Increase it when the format of the files changes.
FORMAT = 1
WORDS = "rows.json"


@dataclass(frozen=True)
class LabelledRows:
    """The usable rows, a line for each other row, and the ignored columns.

    Attributes:
        numbers: numbers of the rows, as an editor or a Parquet reader counts them.
        contents: texts or paths.
        splits: None without such a column; also for roles.
    """

    numbers: Int[np.ndarray, " rows"]
    contents: Keys
    labels: Coded
    splits: Coded | None
    roles: Coded | None
    problems: list[str]
    left_out: list[str]


Read = Callable[[StringsWriter], LabelledRows]


def rows_once(table: Path, columns: tuple[str, ...], read: Read, in_file: bool) -> LabelledRows:
    """The result of `read`. With `in_file`, it is stored in files and read from them until the table changes.

    The files are below `LEVELFIELD_CACHE`, in a folder named after the table's path, size, times and inode.

    Args:
        columns: the columns to read.
        read: passes the contents to a writer.

    Raises:
        UserError: an error of `read`, or no space.
    """
    if not in_file:
        return read(StringsWriter(io.BytesIO()))
    path = str(table.resolve())
    place = cache_root() / "tables" / f"{table.stem[:40]}-{_digest(path, *columns)}"
    folder = place / _digest(FORMAT, path, file_state(table))

    def make() -> None:
        print(f"reading the rows of {table} once, into {folder}", file=sys.stderr)
        for other in place.glob("*/" + WORDS):  # of an earlier state of the table
            shutil.rmtree(other.parent)
        shutil.rmtree(folder, ignore_errors=True)  # left by a killed process
        folder.mkdir(parents=True)
        with StringsWriter.of_folder(folder) as writer:
            _keep(read(writer), folder)

    if _kept(folder) is None:
        with explain_write_errors(folder), Lock(place, "rows", f"rows of {table.name}"):
            if _kept(folder) is None:
                make()
    kept = _kept(folder)
    assert kept is not None
    return kept


def _digest(*values: object) -> str:
    return sha256(json.dumps(values).encode()).hexdigest()[:16]


def _keep(rows: LabelledRows, folder: Path) -> None:
    """Write everything except the contents, which are already written. `WORDS` is last: it marks a complete folder."""
    columns = {"label": rows.labels, "split": rows.splits, "role": rows.roles}
    for name, column in columns.items():
        if column is not None:
            np.save(folder / f"{name}.npy", column.codes)
    np.save(folder / "numbers.npy", rows.numbers)
    np.save(folder / "places.npy", rows.contents.rows)
    names = {name: column.names for name, column in columns.items() if column is not None}
    write_json(folder / WORDS, {"names": names, "problems": rows.problems, "left_out": rows.left_out})


def _kept(folder: Path) -> LabelledRows | None:
    words = read_json(folder / WORDS)
    if words is None:
        return None

    def array(name: str) -> np.ndarray:
        return np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r"))

    columns = {name: Coded(names, array(name)) for name, names in words["names"].items()}
    contents = Keys(Strings.in_folder(folder).__getitem__, array("places"))
    halves = (columns.get("split"), columns.get("role"))
    return LabelledRows(array("numbers"), contents, columns["label"], *halves, words["problems"], words["left_out"])
