"""Your own images, listed in a table."""

import os
from pathlib import Path, PurePath

from PIL import Image

from levelfield.data.datasets.base import MetricDataset
from levelfield.data.datasets.images import open_image
from levelfield.data.datasets.table import LabelledRows, read_labelled_rows, refuse_problems, table_index
from levelfield.data.index import SampleIndex
from levelfield.data.places import own_file
from levelfield.errors import UserError


class ImageTable(MetricDataset):
    """Images listed in a CSV or Parquet table with the columns `path,label`; paths are relative to the table.

    Samples are in the table's order. Classes are in order of their labels: by number where all are whole numbers, else
    by name. Files are looked at only when they are opened.

    A column `split` (`train`, `test`) says which classes are the test half, instead of the second half of the sorted
    classes. A column `role` (`query`, `gallery`) has each test query searched for in the gallery alone, instead of
    among all other test images; it says nothing about training rows.

    Args:
        table: the CSV or Parquet file.
        root: a table that is not there by itself is sought below it, or below LEVELFIELD_DATA where it is None.

    Raises:
        UserError: from `read_index`, a missing column, an empty value, a path that is listed twice, or a class that is
            in both halves.
    """

    name = "image_table"
    own_split_by_default = True

    def __init__(self, table: str | Path, root: str | Path | None = None) -> None:
        self.table = table
        self.root = root

    def read_index(self) -> SampleIndex:
        index, problems = self.read_all()
        refuse_problems(problems)
        return index

    def read_all(self) -> tuple[SampleIndex, list[str]]:
        labelled = self._rows()
        first_row: dict[str, int] = {}
        once, problems = [], labelled.problems
        for row in labelled.rows:
            file = os.path.normpath(row.content)
            if file in first_row:
                # An image that is there twice would be its own nearest neighbour.
                problems.append(
                    f"{self.table}, row {row.row}: {row.content} stands in row {first_row[file]} already; remove one"
                )
            else:
                first_row[file] = row.row
                once.append(row)
        keys = [str(PurePath(row.content)) for row in once]
        return table_index(own_file(self.table, self.root), labelled._replace(rows=once), keys), problems

    def _rows(self) -> LabelledRows:
        return read_labelled_rows(own_file(self.table, self.root), "path")

    def load(self, key: str) -> Image.Image:
        return open_image(self.file_of(key))

    def file_of(self, key: str) -> Path:
        file = own_file(self.table, self.root).parent / key
        if not file.is_file():
            rows = [row.row for row in self._rows().rows if str(PurePath(row.content)) == key]
            raise UserError(
                f"{self.table}, row {rows[0] if rows else '?'}: no file {file}; "
                "paths are relative to the table's folder"
            )
        return file
