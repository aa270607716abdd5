"""Your own images, listed in a table."""

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path, PurePath

import numpy as np
from PIL import Image

from levelfield.core.errors import UserError
from levelfield.data.dataset import MetricDataset, find_file
from levelfield.data.datasets.kept_rows import LabelledRows
from levelfield.data.datasets.table import read_labelled_rows, read_metadata, refuse_problems, table_index
from levelfield.data.datasets.table_rows import Coded
from levelfield.data.images import open_image, other_spelling
from levelfield.data.index import SampleIndex
from levelfield.data.strings import Keys


class ImageTable(MetricDataset):
    """Images listed in a CSV or Parquet table with the columns `path,label`; paths are relative to the table.

    Samples are in the order of the table. Classes are in the order of their labels: by number if all are whole numbers,
    else by name. Image files are read only when they are opened.

    A column `split` (`train`, `test`) sets the test classes; by default they are the second half of the sorted classes.
    With a column `role` (`query`, `gallery`), test queries are searched only in the gallery; by default each test image
    is a query among all others. Roles of training rows have no effect.

    Args:
        table: the CSV or Parquet file.
        root: a missing table is looked up below it, or below LEVELFIELD_DATA if it is None.

    Raises:
        UserError: from `read_index`, a missing column, an empty value, a repeated path, or a class in both halves.
    """

    name = "image_table"
    own_split_by_default = True

    _row_of: Mapping[str, int] | None = None

    def __init__(self, table: str | Path, root: str | Path | None = None) -> None:
        self.table = table
        self.root = root

    def read_index(self) -> SampleIndex:
        index, problems = self.read_all()
        refuse_problems(problems)
        return index

    def read_all(self) -> tuple[SampleIndex, list[str]]:
        self._row_of = None
        labelled = self._rows()
        keys = Keys(partial(_plain_path, labelled.contents.at), labelled.contents.rows)
        return table_index(find_file(self.table, self.root), labelled, keys), labelled.problems

    def read_metadata(self, index: SampleIndex) -> Mapping[str, Coded]:
        table = find_file(self.table, self.root)
        positions = np.arange(len(index.keys)) if index.positions is None else index.positions
        return read_metadata(table, "path", read_labelled_rows(table, "path").numbers[positions])

    def index_files(self) -> list[Path]:
        return [find_file(self.table, self.root)]

    def _rows(self) -> LabelledRows:
        return read_labelled_rows(find_file(self.table, self.root), "path")

    def load(self, key: str) -> Image.Image:
        return open_image(self.file_of(key))

    def files_folder(self) -> Path:
        return find_file(self.table, self.root).parent

    def file_of(self, key: str) -> Path:
        file = self.files_folder() / key
        if not os.path.isfile(file):  # False for a name that is too long
            if self._row_of is None:
                rows = self._rows()
                paths = (str(PurePath(path)) for path in rows.contents)
                self._row_of = dict(zip(paths, rows.numbers.tolist(), strict=True))
            remedy = other_spelling(file) or "paths are relative to the folder of the table"
            raise UserError(f"{self.table}, row {self._row_of.get(key, '?')}: no file {file}; {remedy}")
        return file


def _plain_path(path_at: Callable[[int], str], row: int) -> str:
    """The normalized path: `a.jpg` for `./a.jpg`."""
    return str(PurePath(path_at(row)))
