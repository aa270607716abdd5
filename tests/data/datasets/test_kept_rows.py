"""Tables of many rows: read once, some rows at a time, into files; the same samples and faults as of few."""

import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from levelfield.core.errors import UserError
from levelfield.data.datasets import ImageTable, TextTable, parquet_file, table

ROWS = 40


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every Parquet table has many rows, which come seven at a time."""
    monkeypatch.setattr(table, "MANY", 3)
    monkeypatch.setattr(parquet_file, "AT_A_TIME", 7)
    monkeypatch.setenv("LEVELFIELD_CACHE", str(tmp_path / "cache"))


def columns(**others: list) -> dict[str, list]:
    paths = [f"{number}/ä.png" if number % 3 else f"./{number}//b.png" for number in range(ROWS)]
    return {"path": paths, "label": [number % 9 for number in range(ROWS)], **others}


def write(file: Path, **written: list) -> Path:
    parquet.write_table(pa.table(written), file, row_group_size=11)
    return file


def test_many_rows_give_what_a_csv_file_gives(tmp_path: Path) -> None:
    split = ["Test" if row % 9 > 5 else "train" for row in range(ROWS)]
    written = columns(split=split, role=["", "Query"] * 20, by=[0] * ROWS)
    lines = [",".join(map(str, row)) for row in zip(*written.values(), strict=True)]
    (tmp_path / "t.csv").write_text("\n".join([",".join(written), *lines]))
    many = ImageTable(write(tmp_path / "t.parquet", **written))
    few, index, again = ImageTable(tmp_path / "t.csv").read_index(), many.read_index(), many.read_index()
    for read in (index, again):
        assert read.keys == few.keys
        assert (read.class_names, read.test_classes, read.roles) == (few.class_names, few.test_classes, few.roles)
        assert read.left_out == few.left_out == ("columns ignored, except by a loss with metadata: by",)
        np.testing.assert_array_equal(read.labels, few.labels)
    half = index.labels > 4
    assert index.select(half).keys == few.select(half).keys
    assert index.select(half).keys[2:5] == few.select(half).keys[2:5]
    copied = pickle.dumps(index.keys)
    assert pickle.loads(copied) == few.keys
    assert b"png" not in copied  # a loader process maps the file


def test_they_are_read_once_and_anew_when_the_table_changes(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    file = write(tmp_path / "t.parquet", **columns())
    before, _ = (ImageTable(file).read_index() for _ in range(2))
    changed = columns()
    changed["label"][0] = 8
    after = ImageTable(write(file, **changed)).read_index()
    assert capsys.readouterr().err.count("reading the rows of") == 2
    assert (before.labels[0], after.labels[0]) == (0, 8)
    assert len(list(tmp_path.glob("cache/tables/*/*/rows.json"))) == 1


@pytest.mark.parametrize(
    ("column", "row", "value", "fault"),
    [
        ("path", 23, "", "row 23: path is empty"),
        ("path", 23, "a\0b", "row 23: path has a NUL byte"),
        ("path", 23, "a\nb", "row 23: path has several lines"),
        ("path", 23, "2/c/../ä.png", r"row 23: 2/c/\.\./ä\.png is already in row 3"),
        ("label", 39, None, "row 39: label is empty"),
        ("split", 31, "Test", "row 31: class 3 is in test here and in train in row 4"),
        ("role", 31, "both", "row 31: role is 'both': give query or gallery or nothing"),
    ],
)
def test_a_broken_row_is_named(tmp_path: Path, column: str, row: int, value: str | None, fault: str) -> None:
    written = columns(split=["train"] * ROWS, role=[""] * ROWS)
    written["label"] = list(map(str, written["label"]))
    written[column][row - 1] = value
    file = write(tmp_path / "t.parquet", **written)
    for _ in range(2):  # from the file, too
        with pytest.raises(UserError, match=fault):
            ImageTable(file).read_index()


def test_bytes_that_are_not_utf_8_are_named(tmp_path: Path) -> None:
    letters = pa.py_buffer(b"ab\xffd")
    texts = pa.Array.from_buffers(pa.string(), 4, [None, pa.py_buffer(np.arange(5, dtype=np.int32)), letters])
    with pytest.raises(UserError, match=r"row 3: text is not UTF-8 \(byte 0xFF\)"):
        TextTable(write(tmp_path / "t.parquet", text=texts, label=[0, 1, 0, 1])).read_index()


def test_texts_come_from_the_file(tmp_path: Path) -> None:
    texts = [f"text {number},\nnaïve" for number in range(ROWS)]
    dataset = TextTable(write(tmp_path / "t.parquet", text=[f" {text} " for text in texts], label=columns()["label"]))
    index = dataset.read_index()
    assert index.keys[:2] == ("row 1", "row 2")
    copied = pickle.loads(pickle.dumps(dataset))
    assert [copied.load(key) for key in index.keys] == texts
    for gone in ("row 0", "row 41", "row 007", "text"):
        with pytest.raises(UserError, match=f"no text {gone}"):
            dataset.load(gone)
    in_memory = TextTable(tmp_path / "few.parquet")
    write(tmp_path / "few.parquet", text=texts[:3], label=[0, 1, 0])
    few = in_memory.fingerprint(in_memory.read_index())
    assert dataset.fingerprint(index.select([0, 1, 2])) != few  # other classes
    assert [in_memory.load(key) for key in in_memory.read_index().keys] == texts[:3]


def test_a_csv_file_that_is_too_large_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("levelfield.data.datasets.csv_file.LARGEST_FILE", 10)
    (tmp_path / "t.csv").write_text('text;label\na;01\nb;1\n"c\nd";NA\n')
    with pytest.raises(UserError, match=r"t\.csv is larger than .* convert it to Parquet with python -c") as refused:
        TextTable(tmp_path / "t.csv").read_index()
    command = str(refused.value).partition('python -c "')[2].removesuffix('"')
    exec(command)
    converted = TextTable(tmp_path / "t.parquet")
    assert converted.class_names == ("01", "1", "NA")
    assert [converted[row][0] for row in range(3)] == ["a", "b", "c\nd"]
