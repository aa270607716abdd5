"""Your own data, by the path of a folder of images or of a table."""

import csv
from pathlib import Path

from levelfield.data.datasets import ImageFolder, ImageTable, MetricDataset, TextTable

TABLES = (".csv", ".parquet")


def own_dataset(path: str) -> MetricDataset | None:
    """The data set that a path means: a folder of class folders, or a table with a column `text` or else `path`.

    None where it is neither a folder nor called like a table.
    """
    place = Path(path)
    if place.is_dir():
        return ImageFolder(place)
    if place.suffix.lower() not in TABLES:
        return None
    columns = _columns(place)
    return TextTable(place) if "text" in columns and "path" not in columns else ImageTable(place)


def _columns(table: Path) -> list[str]:
    """Names of a table's columns; none where it cannot be read, of which reading its rows will tell."""
    try:
        if table.suffix.lower() == ".parquet":
            from pyarrow.parquet import read_schema

            return read_schema(table).names
        with table.open(newline="", encoding="utf-8-sig", errors="replace") as file:
            return [name.strip() for name in next(csv.reader(file), [])]
    except (OSError, ValueError, csv.Error):
        return []
