"""Your own images, listed in a table or inside one."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from PIL import Image

from levelfield.core.errors import UserError
from levelfield.data.dataset import TableDataset, find_file
from levelfield.data.images import decode_image, open_image, other_spelling
from levelfield.data.index import SampleIndex
from levelfield.data.rows import refuse_problems


class ImageTable(TableDataset):
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

    _images: Mapping[str, bytes] | None = None  # inside the table; empty if they are files
    _row_of: Mapping[str, int] | None = None
    _has_texts = False

    def read_index(self) -> SampleIndex:
        index, problems = self.read_all()
        refuse_problems(problems)
        return index

    def read_all(self) -> tuple[SampleIndex, list[str]]:
        table, self._row_of = self.read_table(), None
        self._images = table.images
        return table.index(), table.problem_lines

    def load(self, key: str) -> Image.Image:
        if not (images := self._inside()):
            return open_image(self.file_of(key))
        if key not in images:
            raise UserError(f"{self.table} has no {key}: it has changed; start the command again")
        return decode_image(images[key], f"{self.table}, {key}")

    def content_of(self, key: str) -> str:
        images = self._inside()
        return hashlib.sha256(images[key]).hexdigest() if images else super().content_of(key)

    def hashes_files(self) -> bool:
        return not self._inside()

    def files_folder(self) -> Path | None:
        return None if self._inside() else find_file(self.table, self.root).parent

    def file_of(self, key: str) -> Path:
        folder = self.files_folder()
        if folder is None:
            return find_file(self.table, self.root)
        file = folder / key
        if not os.path.isfile(file):  # False for a name that is too long
            if self._row_of is None:
                listed = self.read_table()
                self._row_of = dict(zip(listed.keys, listed.numbers.tolist(), strict=True))
                self._has_texts = "text" in listed.ignored
            texts = "; for a table of texts, rename the column path" if self._has_texts else ""
            remedy = other_spelling(file) or f"paths are relative to the folder of the table{texts}"
            raise UserError(f"{self.table}, row {self._row_of.get(key, '?')}: no file {file}; {remedy}")
        return file

    def _inside(self) -> Mapping[str, bytes]:
        if self._images is None:
            self._images = self.read_table().images
        return self._images
