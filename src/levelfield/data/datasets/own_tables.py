"""Your own images or texts, listed in a table or inside one."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from levelfield.core.errors import UserError
from levelfield.data.dataset import MetricDataset, SampleIndex, find_file, refuse_problems
from levelfield.data.images import other_spelling

if TYPE_CHECKING:
    from levelfield.data.tables import SampleTable


class _TableDataset(MetricDataset):
    """Samples in a table, whose column `content` has their paths or texts; a Parquet table may have the images."""

    own_split_by_default = True
    content: ClassVar[str]

    _inside: Any = None  # names and contents of the samples inside the table; empty for paths

    def __init__(self, table: str | Path, root: str | Path | None = None) -> None:
        self.table = table
        self.root = root

    def read_index(self) -> SampleIndex:
        index, problems = self.read_all()
        refuse_problems(problems)
        return index

    def read_all(self) -> tuple[SampleIndex, list[str]]:
        table = self.read_table()
        return table.index(), table.problem_lines

    def read_table(self) -> "SampleTable":
        from levelfield.data.tables import SampleTable  # imports pyarrow

        table = SampleTable(find_file(self.table, self.root), self.content)
        self._inside = () if table.keys is table.contents else (table.keys, table.contents)
        return table

    def files_folder(self) -> Path | None:
        if self._inside is None:
            self.read_table()
        return None if self._inside else find_file(self.table, self.root).parent

    def inside(self, key: str) -> str | bytes | None:
        if self.files_folder() is not None:
            return None
        names, contents = self._inside
        if (place := names.place_of(key)) is None:
            raise UserError(f"{self.table} has no {key}: it has changed; start the command again")
        return contents[place]


class ImageTable(_TableDataset):
    """Images listed in a CSV or Parquet table with the columns `path,label`; paths are relative to the table.

    Samples are in the order of the table. Classes are in the order of their labels: by number if all are whole numbers,
    else by name. Image files are read only when they are opened. A Parquet table without paths may have the images in
    a column `image` or `img` of bytes, or as Hugging Face's `datasets` writes it; then keys are `row 1`, `row 2`...

    A column `split` (`train`, `test`) sets the test classes; by default they are the second half of the sorted classes.
    With a column `role` (`query`, `gallery`), test queries are searched only in the gallery; by default each test image
    is a query among all others. Roles of training rows have no effect. With a column `group` (camera, session,
    patient), samples of the query's class and group leave its gallery.

    Args:
        table: the file: .csv, .tsv (both also with .gz) or .parquet.
        root: a missing table is looked up below it, or below LEVELFIELD_DATA if it is None.

    Raises:
        UserError: from `read_index`, a missing column, an empty value, a repeated path, or a class in both halves.
    """

    name = "image_table"
    content = "path"

    _row_of: Mapping[str, int] | None = None
    _remedy = "paths are relative to the folder of the table"

    def file_of(self, key: str) -> Path:
        folder = self.files_folder()
        if folder is None:
            return find_file(self.table, self.root)
        file = folder / key
        if not os.path.isfile(file):  # False for a name that is too long
            if self._row_of is None:
                listed = self.read_table()
                self._row_of = dict(zip(listed.keys, listed.numbers.tolist(), strict=True))
                if "text" in listed.ignored:
                    self._remedy += "; for a table of texts, rename the column path"
            remedy = other_spelling(file) or self._remedy
            raise UserError(f"{self.table}, row {self._row_of.get(key, '?')}: no file {file}; {remedy}")
        return file


class TextTable(_TableDataset):
    """Texts in a CSV or Parquet table with the columns `text,label`; a CSV file is UTF-8.

    Samples are in the order of the table and named by their row numbers in an editor. Classes are in the order of their
    labels: by number if all are whole numbers, else by name. The columns `split`, `role` and `group` are those of
    `ImageTable`.

    Args:
        table: the file: .csv, .tsv (both also with .gz) or .parquet.
        root: a missing table is looked up below it, or below LEVELFIELD_DATA if it is None.

    Raises:
        UserError: from `read_index`, a missing column, or the first row whose text or label is empty, has a NUL byte or
            is not UTF-8; `verify` lists all such rows.
    """

    name = "text_table"
    content = "text"
    modality = "text"
