"""Your own data, by the path of a folder of images or of a table."""

from pathlib import Path

from levelfield.data.datasets import ImageFolder, ImageTable, MetricDataset, TextTable
from levelfield.data.datasets.images import image_suffixes
from levelfield.data.datasets.table import column_names, read_table
from levelfield.data.places import own_file
from levelfield.errors import UserError

TABLES = (".csv", ".parquet")


def own_dataset(path: str, root: str | None = None) -> MetricDataset | None:
    """The data set that a path means: a folder of class folders, or a table of images (`path`) or of texts (`text`).

    A table with both columns lists images if its paths are called like images.

    None where it is neither a folder nor called like a table. One that is not there by itself is sought below `root`,
    or below LEVELFIELD_DATA where that is None.
    """
    place = own_file(path, root)
    if place.is_dir():
        return ImageFolder(path, root)
    if place.suffix.lower() not in TABLES:
        return None
    columns = column_names(place)
    if "text" not in columns or ("path" in columns and _lists_images(place)):
        return ImageTable(path, root)
    return TextTable(path, root)


def _lists_images(table: Path) -> bool:
    """Whether most of the paths in a table with texts too are called like images, instead of like the texts' files."""
    images = rows = 0
    try:
        for some in read_table(table, ("path", "label")).rows:
            images += sum(Path(path).suffix.lower() in image_suffixes() for path in some.contents)
            rows += len(some.contents)
    except UserError:  # of which reading it will tell
        return False
    return 2 * images > rows
