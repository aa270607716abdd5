"""Your own data, from the path of a folder of images or of a table."""

import os
from pathlib import Path

from levelfield.core.errors import UserError
from levelfield.data.datasets import ImageFolder, ImageTable, MetricDataset, TextTable
from levelfield.data.datasets.table import column_names, read_table
from levelfield.data.images import image_suffixes
from levelfield.data.places import own_file

TABLES = (".csv", ".parquet")


def own_dataset(path: str, root: str | None = None) -> MetricDataset | None:
    """The data set of a path: a folder of class folders, or a table of images (`path`) or texts (`text`).

    A table with both columns lists images if its paths have the suffixes of images. A missing path is looked up below
    `root`, or below LEVELFIELD_DATA if `root` is None.

    Returns:
        None if the path is neither a folder nor has the suffix of a table.
    """
    place = own_file(path, root)
    if os.path.isdir(place):
        return ImageFolder(path, root)
    if place.suffix.lower() not in TABLES:
        return None
    columns = column_names(place)
    if "text" not in columns or ("path" in columns and _lists_images(place)):
        return ImageTable(path, root)
    return TextTable(path, root)


def _lists_images(table: Path) -> bool:
    """Whether most paths of a table that also has texts have the suffixes of images."""
    images = rows = 0
    try:
        for some in read_table(table, ("path", "label")).rows:
            images += sum(Path(path).suffix.lower() in image_suffixes() for path in some.contents)
            rows += len(some.contents)
    except UserError:  # reading the table gives the error
        return False
    return 2 * images > rows
