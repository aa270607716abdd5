"""Tables of samples: columns of CSV and Parquet files as Arrow tables of text, with the row numbers of an editor.

The rows of a large file are stored once as an Arrow file below `LEVELFIELD_CACHE`, which all processes map.
"""

import csv
import gzip
import json
import os
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from itertools import chain, compress, islice
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Int
from pyarrow import parquet

from levelfield.core.errors import UserError
from levelfield.core.files import explain_write_errors, locked
from levelfield.core.paths import cache_root
from levelfield.data.dataset import TABLES, SampleIndex, class_order
from levelfield.data.hashes import file_state

# The optional columns of samples with their values; a group is any value.
OPTIONAL_COLUMNS: dict[str, list[str]] = {"split": ["train", "test"], "role": ["query", "gallery", ""], "group": []}
IMAGE_COLUMNS = ("image", "img")
SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "|"}
LONGEST_VALUE = 10_000_000  # a longer one is probably an unclosed quote
LARGE_FILE = 32 << 20
AT_A_TIME, IMAGES_AT_A_TIME = 1 << 14, 64  # rows
ODD_PATH = r"(^|/)\.?(/|$)"  # it has a shorter spelling

Part = list[Sequence[Any]]  # some rows: their numbers, then each column
Names = tuple[list[str], np.ndarray]  # the different values of a column, and the number of each row's


class Keys(Sequence[Any]):
    """Values of some rows, decoded when they are asked for.

    Args:
        source: a column; or the Arrow file of a table, whose contents they are; or None for names such as `row 7`.
        rows: positions in the column; for None the row numbers.
    """

    def __init__(self, source: pa.ChunkedArray | Path | None, rows: Int[np.ndarray, " keys"]) -> None:
        self.source, self.rows = source, rows
        self._column = _mapped(source)[1] if isinstance(source, Path) else source

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, position: Any) -> Any:
        if not isinstance(position, int | np.integer):  # a slice, or positions
            return Keys(self.source, self.rows[position])
        row = int(self.rows[position])
        return f"row {row}" if self._column is None else self._column[row].as_py()

    def place_of(self, name: str) -> int | None:
        """The position of a name such as `row 7`; None if there is no such row."""
        number = name.removeprefix("row ")
        wanted = int(number) if number.isdecimal() and len(number) < 10 else 0
        place = int(np.searchsorted(self.rows, np.int32(wanted)))  # another type would copy all numbers
        return place if place < len(self) and self[place] == name else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keys | tuple) and tuple(self) == tuple(other)

    def __reduce__(self) -> tuple[Any, ...]:  # another process maps the file, too
        return Keys, (self.source, self.rows)


class Table:
    """Some columns of a CSV or Parquet file as text without outer blanks; a missing optional column is left out.

    A CSV file is UTF-8 with a header; values are separated by comma, semicolon, tab or `|`. The number of its row is
    the number of its first line in an editor, so the header is row 1. Rows of a Parquet file are numbered from 1.

    Args:
        wanted: the columns that must be there. The first may have the bytes of images.

    Attributes:
        rows: the usable rows: `number`, then the columns.
        problems: row number to the fault of each other row.
        ignored: names of the other columns.

    Raises:
        UserError: the table is missing or cannot be read, or a column is missing or repeated.
    """

    def __init__(self, file: Path, wanted: Sequence[str], optional: Sequence[str] = ()) -> None:
        if not str(file).lower().endswith(TABLES):
            raise UserError(f"{file}: give a .csv, .tsv (both also with .gz) or .parquet table")
        if not os.path.isfile(file):
            raise UserError(f"no table {file}: give a CSV or Parquet file with the columns {','.join(wanted)}")
        self.file, self.wanted, self.problems = file, wanted, dict[int, str]()
        separator, names = ("", _schema(file).names) if _is_parquet(file) else _header(file, wanted)
        places = _places(file, names, wanted, optional)
        self.ignored = [name or "(no name)" for at, name in enumerate(names) if at not in places.values()]
        self._images = wanted[0] if wanted[0] in IMAGE_COLUMNS else None
        kinds = {name: pa.binary() if name == self._images else pa.string() for name in places}
        self.schema = pa.schema({"number": pa.int32(), **kinds})
        if _is_parquet(file):
            parts = _parquet_parts(file, [names[at] for at in places.values()], self._images is not None)
        else:
            parts = _csv_parts(file, separator, [*places.values()], self.problems)
        self._read(map(self._usable, parts))
        self.problems = dict(sorted(self.problems.items()))

    def _read(self, batches: Iterator[pa.RecordBatch]) -> None:
        self.rows = pa.Table.from_batches(list(batches), self.schema)

    @property
    def problem_lines(self) -> list[str]:
        return [f"{self.file}, row {number}: {fault}" for number, fault in self.problems.items()]

    def _usable(self, part: Part) -> pa.RecordBatch:
        """The rows without a fault; the others go to the problems."""
        numbers, *columns = part
        faults: dict[int, str] = {}
        for name, values in zip(self.schema.names[1:], columns, strict=True):
            faults = self._faults(name, values) | faults
        self.problems |= {numbers[row]: fault for row, fault in faults.items()}
        if faults:
            is_usable = [row not in faults for row in range(len(numbers))]
            part = [[*compress(values, is_usable)] for values in part]
        return pa.record_batch([*map(pa.array, part, self.schema.types)], self.schema)

    def _faults(self, name: str, values: Sequence[Any]) -> dict[int, str]:
        """Position to fault: values are UTF-8 without NUL, in one line except texts; wanted ones are not empty."""
        texts = ["image" if value else "" for value in values] if name == self._images else values
        is_wanted, together = name in self.wanted, "".join(texts)
        if (all(texts) or not is_wanted) and together.isascii() and not any(mark in together for mark in "\0\r\n"):
            return {}  # as in most tables; it is fast
        given = ((row, text) for row, text in enumerate(texts) if text or is_wanted)
        return {row: fault for row, text in given if (fault := content_fault(name, text))}


class SampleTable(Table):
    """The rows with a content and a label; also `split`, `role` and `group`. Paths are normalized, and occur once.

    Args:
        content: `text`; or `path`, instead of which a Parquet table may have images.

    Attributes:
        contents: the content of each row.
        keys: paths; else names such as `row 7` of the contents, which are inside the table.

    Raises:
        UserError: as `Table`; or there are no rows.
    """

    _stored: Path | None = None

    def __init__(self, file: Path, content: str, label: str = "label") -> None:
        content = (image_column(file) if content == "path" else None) or content
        super().__init__(file, (content, label), [*OPTIONAL_COLUMNS])
        if not len(self.rows) and not self.problems:
            raise UserError(f"{file} has no rows: give one row per sample, with {content} and {label}")
        self.contents = Keys(self._stored or self.rows[1], np.arange(len(self.rows), dtype=np.int32))
        self.keys = self.contents if content == "path" else Keys(None, self.numbers)

    @property
    def numbers(self) -> Int[np.ndarray, " rows"]:
        """The number of each row."""
        return _joined(self.rows["number"]).to_numpy()

    def _read(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Read the rows of a large file only if there is no Arrow file of them, or if the table has changed since."""
        if self.wanted[0] == "path":
            batches = map(_with_plain_paths, batches)
        if self.file.stat().st_size > LARGE_FILE:
            self._store(batches)
        else:
            super()._read(batches)
            self.problems |= _repeated(self.rows)
        if self.problems:  # of repeated rows
            self.rows = self.rows.filter(~np.isin(self.rows["number"], [*self.problems]))

    def _store(self, batches: Iterator[pa.RecordBatch]) -> None:
        folder = cache_root() / "tables"
        named_by = (str(self.file.resolve()), self.schema.names), file_state(self.file)
        begin, state = (sha256(repr(each).encode()).hexdigest()[:16] for each in named_by)
        place = folder / f"{begin}-{state}-{self.file.stem[:40]}.arrow"
        with explain_write_errors(place), locked(folder, begin, f"rows of {self.file.name}"):
            if not place.exists():
                print(f"reading the rows of {self.file} once, into {place}", file=sys.stderr)
                for earlier in folder.glob(f"{begin}-*"):
                    earlier.unlink()
                aside = place.with_suffix(".new")
                _write(aside, self.schema, batches)
                self.rows = _mapped(aside)
                self.problems |= _repeated(self.rows)
                if self.problems:
                    aside.unlink()
                    return
                aside.rename(place)
        self.rows, self._stored = _mapped(place), place

    def index(self) -> SampleIndex:
        """The index, with numbered labels and checked optional columns.

        Raises:
            UserError: an unknown split or role, an empty group, or a class in both halves.
        """
        names, codes = _names(self.rows[2])
        class_names = tuple(class_order(names[code] for code in np.flatnonzero(np.bincount(codes))))
        label_of = {name: label for label, name in enumerate(class_names)}
        labels = np.array([label_of.get(name, -1) for name in names], np.int64)[codes]
        split, role, group = map(self._checked, OPTIONAL_COLUMNS)
        left_out = f"columns ignored: {', '.join(self.ignored)}"
        return SampleIndex(
            self.keys,
            labels,
            class_names,
            test_classes=split and self._test_classes(split, labels, class_names),
            roles=role and tuple(np.array(role[0], object)[role[1]].tolist()),
            left_out=(left_out,) if self.ignored else (),
            groups=group and group[1],
        )

    def _checked(self, title: str) -> Names | None:
        """The values of an optional column; None without it."""
        if title not in self.rows.column_names:
            return None
        known = OPTIONAL_COLUMNS[title]
        names, codes = _names(self.rows[title])
        names = [name.lower() for name in names] if known else names
        wrong = np.array([name not in known if known else not name for name in names], bool)[codes]
        if wrong.any():
            row = int(np.argmax(wrong))
            given = f"'{names[codes[row]]}'" if names[codes[row]] else "empty"
            wanted = " or ".join(name or "nothing" for name in known) or "each row a group"
            raise UserError(
                f"{self.file}, row {self.numbers[row]}: {title} is {given}: give {wanted}, or rename the column"
            )
        return names, codes

    def _test_classes(self, split: Names, labels: np.ndarray, class_names: Sequence[str]) -> tuple[int, ...]:
        tested = np.array([name == "test" for name in split[0]], bool)[split[1]]
        classes, first_rows = np.unique(labels, return_index=True)
        others = np.flatnonzero(tested != tested[first_rows][labels])
        if len(others):
            row, first = others[0], first_rows[labels[others[0]]]
            here, there = ("test", "train") if tested[row] else ("train", "test")
            raise UserError(
                f"{self.file}, row {self.numbers[row]}: class {class_names[labels[row]]} is in {here} here and in "
                f"{there} in row {self.numbers[first]}; put each class into one of them, or rename the column split to "
                "split the classes in halves"
            )
        return tuple(classes[tested[first_rows]].tolist())


def content_fault(column: str, content: str) -> str:
    """The fault of a value that was decoded with `surrogateescape`, and the remedy; empty without a fault."""
    if not content:
        return f"{column} is empty; fill it in or remove the row"
    if "\0" in content:
        return f"{column} has a NUL byte; remove it"
    if strange := re.search("[\ud800-\udfff]", content):
        return f"{column} is not UTF-8 (byte 0x{ord(strange[0]) & 0xFF:02X}); save the file as UTF-8"
    several = column != "text" and re.search("[\r\n]", content)
    return f"{column} has several lines; close the double quote that opens it" if several else ""


def column_names(file: Path) -> list[str]:
    """Names of a table's columns in lower case; empty if the file cannot be read."""
    try:
        names = _schema(file).names if _is_parquet(file) else _header(file)[1]
        return [name.strip().lower() for name in names]
    except (OSError, UserError):
        return []


def image_column(file: Path) -> str | None:
    """The column of images in a Parquet table without paths; None if there is none.

    It has the bytes of image files, or the structs of bytes and path that Hugging Face's `datasets` writes.
    """
    schema = _schema(file) if _is_parquet(file) and file.is_file() else ()
    kinds = {field.name.strip().lower(): field.type for field in schema}
    for name in () if "path" in kinds else IMAGE_COLUMNS:
        kind = kinds.get(name, pa.null())
        if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
            kind = kind.field("bytes").type
        if kind in (pa.binary(), pa.large_binary()):
            return name
    return None


def _places(file: Path, names: Sequence[str], wanted: Sequence[str], optional: Sequence[str]) -> dict[str, int]:
    """Position of each column; names are compared without case and outer blanks."""
    known = [name.strip().lower() for name in names]
    for column in (*wanted, *optional):
        if known.count(column) > 1:
            twice = " and ".join(name for name in names if name.strip().lower() == column)
            raise UserError(f"{file} has {known.count(column)} columns {column} ({twice}): rename all but one")
    if missing := [column for column in wanted if column not in known]:
        raise UserError(
            f"{file} has no column {' and no column '.join(missing)}: it has {', '.join(names) or 'none'}; "
            f"rename them to {','.join(wanted)}"
        )
    return {column: known.index(column) for column in (*wanted, *optional) if column in known}


def _with_plain_paths(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with the shortest spelling of each path: `a.jpg` for `./a.jpg`."""
    if not pc.any(pc.match_substring_regex(batch[1], ODD_PATH)).as_py():
        return batch
    paths = pa.array([str(PurePosixPath(path)) for path in batch[1].to_pylist()])
    return pa.record_batch([batch[0], paths, *batch.columns[2:]], batch.schema)


def _repeated(rows: pa.Table) -> dict[int, str]:
    """Row number to fault of each row that repeats a file: an image would be its own nearest neighbour."""
    if rows.column_names[1] != "path":
        return {}

    def files() -> Iterator[str]:
        paths = chain.from_iterable(part.to_pylist() for part in rows["path"].chunks)
        return (os.path.normpath(path) if ".." in path else path for path in paths)

    hashes = np.fromiter(map(hash, files()), np.int64, len(rows))
    ordered = np.sort(hashes)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    first_row, faults = dict[str, int](), dict[int, str]()
    numbered = zip(rows["number"].to_numpy().tolist(), files(), strict=True) if len(twice) else ()
    for number, file in compress(numbered, np.isin(hashes, twice)):
        if (first := first_row.setdefault(file, number)) != number:
            faults[number] = f"{file} is already in row {first}; remove one"
    return faults


def _write(file: Path, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
    """Write two streams of Arrow: the contents in batches, and the other columns as a whole."""
    others = []
    with pa.OSFile(str(file), "wb") as sink:
        with pa.ipc.new_stream(sink, pa.schema([schema.field(1)])) as contents:
            for batch in batches:
                contents.write_batch(batch.select([1]))
                others.append(batch.select([0, *range(2, len(schema))]))
        numbers, *columns = pa.Table.from_batches(others, pa.schema([schema.field(0), *[*schema][2:]])).columns
        rest = pa.table([_joined(numbers), *map(_coded, columns)], ["number", *schema.names[2:]])
        with pa.ipc.new_stream(sink, rest.schema) as whole:
            whole.write_table(rest)


def _mapped(file: Path) -> pa.Table:
    source = pa.memory_map(str(file))
    contents, rest = (pa.ipc.open_stream(source).read_all() for _ in range(2))
    return rest.add_column(1, contents.field(0), contents[0])


def _joined(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _coded(column: pa.ChunkedArray) -> pa.DictionaryArray:
    """Different values, in the order of their first row, and the number of each row's value."""
    return _joined(column if pa.types.is_dictionary(column.type) else column.dictionary_encode())


def _names(column: pa.ChunkedArray) -> Names:
    coded = _coded(column)
    return coded.dictionary.to_pylist(), coded.indices.to_numpy()


# CSV


def _header(file: Path, wanted: Sequence[str] = ()) -> tuple[str, list[str]]:
    """Separator and names: the most wanted columns, then the most columns; the comma if all are equal."""

    def names_by(separator: str) -> list[str]:
        return [name.strip() for name in next(_csv_rows(file, separator), (1, []))[1]]

    def columns(separator: str) -> tuple[int, int]:
        with suppress(UserError):  # the separator leaves quotes inside the names
            different = {name.lower() for name in names_by(separator)}
            return len(different.intersection(wanted)), len(different)
        return 0, 0

    separator = max(SEPARATORS, key=columns)
    names = names_by(separator)
    if re.search("[\0\ud800-\udfff]", "".join(names)):
        raise UserError(f"{file} is not a CSV file in UTF-8: save it as CSV in UTF-8")
    return separator, names


def _csv_parts(file: Path, separator: str, places: Sequence[int], problems: dict[int, str]) -> Iterator[Part]:
    rows = _csv_rows(file, separator)
    num_columns = len(next(rows)[1])
    while some := list(islice(rows, AT_A_TIME)):
        whole = []
        for number, values in some:
            if any(values[num_columns:]):
                # An unquoted separator shifts the values behind it: the label would be a part of the text.
                remedy = f"put double quotes around a value with a {SEPARATORS[separator]}"
                problems[number] = f"{len(values)} values for {num_columns} columns; {remedy}"
            elif values:  # not a blank line
                whole.append([number, *(values[at].strip() if at < len(values) else "" for at in places)])
        yield [*zip(*whole, strict=True)] or [()] * (1 + len(places))


def _csv_rows(file: Path, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Row numbers and values, the header first.

    Lone surrogates replace bytes that are not UTF-8, so that the error can name the row.
    """
    csv.field_size_limit(LONGEST_VALUE)  # by default 131,072 characters
    opened: Any = gzip.open if file.suffix.lower() == ".gz" else open
    number = 1
    try:
        with opened(file, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="") as lines:
            reader = csv.reader(lines, delimiter=separator, skipinitialspace=True, strict=True)
            for values in reader:
                yield number, values
                number = reader.line_num + 1
    except csv.Error as error:
        fault = f"a double quote is not closed, or is inside a value, or a value is too long ({error})"
        remedy = "close it, or write it twice and put double quotes around the value"
        raise UserError(f"{file}, row {number}: {fault}; {remedy}") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{file} is not a complete gzip file ({error}): write it again") from None


# Parquet


def _is_parquet(file: Path) -> bool:
    return file.suffix.lower() == ".parquet"


@contextmanager
def _opened(file: Path) -> Iterator[parquet.ParquetFile]:
    try:
        yield parquet.ParquetFile(file)
    except (OSError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{file} is not a readable Parquet file ({reason}): write it again") from None


def _schema(file: Path) -> pa.Schema:
    with _opened(file) as opened:
        return opened.schema_arrow


def _parquet_parts(file: Path, names: list[str], images: bool) -> Iterator[Part]:
    """Row groups are read lazily, so only a part of one is in memory."""
    with _opened(file) as opened:
        for name in names[images:]:
            if pa.types.is_nested(kind := opened.schema_arrow.field(name).type):
                raise UserError(f"{file}: the column {name} has the type {kind}: give one value per row")
        first = 1
        for batch in opened.iter_batches(IMAGES_AT_A_TIME if images else AT_A_TIME, columns=names):
            columns = [_named(batch.column(name), opened.schema_arrow, name) for name in names]
            yield [range(first, first + len(batch)), *map(_files, columns[:images]), *map(_texts, columns[images:])]
            first += len(batch)


def _named(column: pa.Array, schema: pa.Schema, name: str) -> pa.Array:
    """The column; with the names of numbered classes, if Hugging Face's `datasets` has written them into the file."""
    written = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    feature = written.get("info", {}).get("features", {}).get(name)
    if isinstance(feature, dict) and "names" in feature:
        column = pa.array(feature["names"]).take(pc.if_else(pc.less(column, 0), None, column))  # -1 is no class
    return column


def _files(column: pa.Array) -> list[bytes]:
    """The bytes of images; empty where there are none."""
    files = pc.struct_field(column, "bytes") if pa.types.is_struct(column.type) else column
    return [file or b"" for file in files.to_pylist()]


def _texts(column: pa.Array) -> list[str]:
    try:
        values = column.to_pylist()
    except UnicodeDecodeError:  # a fault of its row
        values = column.cast(pa.large_binary()).to_pylist()
    return [value.strip() if type(value) is str else _as_text(value) for value in values]


def _as_text(value: Any) -> str:
    """What Python writes, without outer blanks; empty for a missing value."""
    if value is None or value != value:  # missing, or not a number
        return ""
    if isinstance(value, bytes):
        return value.decode(errors="surrogateescape").strip()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # pandas stores a column of whole numbers with gaps as floats
    return str(value).strip()
