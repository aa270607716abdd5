"""Your own texts, listed in a table."""

from pathlib import Path

from levelfield.data.datasets.table import read_labelled_rows, table_index
from levelfield.data.datasets.texts import TextDataset
from levelfield.data.index import SampleIndex
from levelfield.data.places import own_file


class TextTable(TextDataset):
    """Texts in a CSV or Parquet table with the columns `text,label`; a CSV file is UTF-8.

    Samples are in the table's order, called by their rows as an editor numbers them. Classes are in order of their
    labels: by number where all are whole numbers, else by name. The columns `split` and `role` mean what they mean to
    `ImageTable`.

    Args:
        table: the CSV or Parquet file.
        root: a table that is not there by itself is sought below it, or below LEVELFIELD_DATA where it is None.

    Raises:
        UserError: from `read_index`, a missing column, or the first row whose text or label is empty, has a NUL byte or
            is not UTF-8; `verify` lists them all.
    """

    name = "text_table"
    own_split_by_default = True

    def __init__(self, table: str | Path, root: str | Path | None = None) -> None:
        self.table = table
        self.root = root

    def read_texts(self) -> tuple[SampleIndex, list[str], list[str]]:
        labelled = read_labelled_rows(own_file(self.table, self.root), "text")
        index = table_index(own_file(self.table, self.root), labelled, keys=[f"row {row.row}" for row in labelled.rows])
        return index, [row.content for row in labelled.rows], labelled.problems
