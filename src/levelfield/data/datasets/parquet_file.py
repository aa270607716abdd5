"""Read the columns of a Parquet file as text, some rows at a time."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from levelfield.core.errors import UserError
from levelfield.data.datasets.table_rows import Coded, Rows, TableFile, places_of

if TYPE_CHECKING:
    import pyarrow as pa

AT_A_TIME = 1 << 16


def read_parquet(table: Path, wanted: Sequence[str], optional: Sequence[str] = ()) -> TableFile:
    """The wanted columns (the first has the contents) and the optional ones; rows are numbered from 1.

    Row groups are read lazily, so only a part of one is in memory.

    Raises:
        UserError: the table cannot be read, lacks a wanted column, or has a column twice.
    """
    import pyarrow as pa

    schema = _opened(table).schema_arrow
    _refuse_embedded_images(table, schema, wanted)
    places = places_of(table, schema.names, wanted, optional)
    for at in places:
        if at is not None and pa.types.is_nested(schema.field(at).type):
            column = schema.field(at)
            raise UserError(f"{table}: the column {column.name} has the type {column.type}: give one value per row")
    columns = [None if at is None else schema.names[at] for at in places]
    return TableFile(_rows(table, columns), passed_over=[name for name in schema.names if name not in columns])


def _refuse_embedded_images(table: Path, schema: "pa.Schema", wanted: Sequence[str]) -> None:
    """Raise UserError for a table of images whose paths are missing, or are the images themselves."""
    import pyarrow as pa

    for field in schema if "path" in wanted else ():
        is_image = pa.types.is_struct(field.type) and field.type.get_field_index("bytes") >= 0
        if is_image and (field.name.strip().lower() == "path" or "path" not in schema.names):
            raise UserError(
                f"{table}: the column {field.name} has the images themselves: write each into a file, and list their "
                "paths in a column path"
            )


def num_rows(table: Path) -> int:
    """Number of rows of a Parquet file."""
    return _opened(table).metadata.num_rows


def parquet_columns(table: Path, nested: bool) -> list[str]:
    """Names of the columns, with or without `nested` ones; empty if the file cannot be read (see `csv_columns`)."""
    import pyarrow as pa

    try:
        return [field.name for field in _opened(table).schema_arrow if nested or not pa.types.is_nested(field.type)]
    except UserError:
        return []


def _rows(table: Path, columns: list[str | None]) -> Iterator[Rows]:
    first = 1
    with _readable(table):
        for batch in _opened(table).iter_batches(AT_A_TIME, columns=[name for name in columns if name is not None]):
            contents, *others = (None if name is None else batch.column(name) for name in columns)
            numbers = np.arange(first, first + len(batch))
            yield Rows(numbers, _texts(contents), [None if column is None else _coded(column) for column in others])
            first += len(batch)


@contextmanager
def _readable(table: Path) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (OSError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{table} is not a readable Parquet file ({reason}): write it again") from None


def _opened(table: Path) -> Any:
    from pyarrow import parquet

    with _readable(table):
        return parquet.ParquetFile(table)


def _coded(column: "pa.Array") -> Coded:
    """The different values as text; two values may have the same text."""
    import pyarrow as pa

    try:
        column = column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column
        coded = column.dictionary_encode("encode")
        return Coded(_texts(coded.dictionary), coded.indices.to_numpy())
    except (pa.ArrowNotImplementedError, AttributeError):  # types without dictionary encoding
        return Coded.of(_texts(column))


def _texts(column: "pa.Array") -> list[str]:
    import pyarrow as pa

    try:
        values = column.to_pylist()
    except UnicodeDecodeError:  # reported with its row later
        values = column.cast(pa.large_binary()).to_pylist()
    return [value.strip() if type(value) is str else _as_text(value) for value in values]


def _as_text(value: Any) -> str:
    if value is None or value != value:  # missing, or not a number
        return ""
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="surrogateescape").strip()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # pandas stores a column of whole numbers with gaps as floats
    return str(value).strip()
