"""Your own texts, listed in a table."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int

from levelfield.data.dataset import TextDataset, find_file
from levelfield.data.datasets.table import read_labelled_rows, read_metadata, table_index
from levelfield.data.datasets.table_rows import Coded
from levelfield.data.index import SampleIndex
from levelfield.data.strings import Keys


class TextTable(TextDataset):
    """Texts in a CSV or Parquet table with the columns `text,label`; a CSV file is UTF-8.

    Samples are in the order of the table and named by their row numbers in an editor. Classes are in the order of their
    labels: by number if all are whole numbers, else by name. The columns `split` and `role` are those of `ImageTable`.

    Args:
        table: the CSV or Parquet file.
        root: a missing table is looked up below it, or below LEVELFIELD_DATA if it is None.

    Raises:
        UserError: from `read_index`, a missing column, or the first row whose text or label is empty, has a NUL byte or
            is not UTF-8; `verify` lists all such rows.
    """

    name = "text_table"
    own_split_by_default = True

    def __init__(self, table: str | Path, root: str | Path | None = None) -> None:
        self.table = table
        self.root = root

    def read_texts(self) -> tuple[SampleIndex, Sequence[str], list[str]]:
        labelled = read_labelled_rows(find_file(self.table, self.root), "text")
        index = table_index(find_file(self.table, self.root), labelled, Keys(_called, labelled.numbers))
        return index, labelled.contents, labelled.problems

    def read_metadata(self, index: SampleIndex) -> Mapping[str, Coded]:
        table = find_file(self.table, self.root)
        positions = np.arange(len(index.keys)) if index.positions is None else index.positions
        return read_metadata(table, "text", read_labelled_rows(table, "text").numbers[positions])

    def index_files(self) -> list[Path]:
        return [find_file(self.table, self.root)]

    def texts_by_key(self, keys: Sequence[str], texts: Sequence[str]) -> Mapping[str, str]:
        assert isinstance(keys, Keys)
        return _TextOfRow(keys.rows, texts)


def _called(number: int) -> str:
    return f"row {number}"


class _TextOfRow(Mapping[str, str]):
    """Name of a row to its text; `numbers` are the row numbers, ascending."""

    def __init__(self, numbers: Int[np.ndarray, " rows"], texts: Sequence[str]) -> None:
        self.numbers, self.texts = numbers, texts

    def __getitem__(self, key: str) -> str:
        number = key.removeprefix("row ")
        place = int(np.searchsorted(self.numbers, int(number))) if number.isdecimal() else len(self)
        if place == len(self) or _called(self.numbers[place]) != key:
            raise KeyError(key)
        return self.texts[place]

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[str]:
        return map(_called, self.numbers)
