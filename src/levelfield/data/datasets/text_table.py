"""Your own texts, listed in a table."""

from levelfield.data.dataset import TableDataset


class TextTable(TableDataset):
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

    def load(self, key: str) -> str:
        return str(self.inside(key))
