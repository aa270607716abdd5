"""Tables: large ones are read once, some rows at a time, into a file; images in a table, names of classes, groups."""

import gzip
import hashlib
import json
import pickle
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from levelfield.core.errors import UserError
from levelfield.data import tables
from levelfield.data.datasets import ImageTable, TextTable
from levelfield.data.own import dataset_from_path
from levelfield.use.samples import samples_of

ROWS = 40


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every table is in a large file, and its rows come seven at a time."""
    monkeypatch.setattr(tables, "LARGE_FILE", 0)
    monkeypatch.setattr(tables, "AT_A_TIME", 7)


def columns(**others: list) -> dict[str, list]:
    paths = [f"{number}/ä.png" if number % 3 else f"./{number}//b.png" for number in range(ROWS)]
    return {"path": paths, "label": [number % 9 for number in range(ROWS)], **others}


def write(file: Path, **written: list) -> Path:
    parquet.write_table(pa.table(written), file, row_group_size=11)
    return file


def test_a_large_file_gives_what_a_small_one_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    split = ["Test" if row % 9 > 5 else "train" for row in range(ROWS)]
    written = columns(split=split, role=["", "Query"] * 20, by=[0] * ROWS)
    lines = [",".join(map(str, row)) for row in zip(*written.values(), strict=True)]
    (tmp_path / "t.csv").write_text("\n".join([",".join(written), *lines]))
    many = ImageTable(write(tmp_path / "t.parquet", **written))
    index, again, of_csv = many.read_index(), many.read_index(), ImageTable(tmp_path / "t.csv").read_index()
    monkeypatch.setattr(tables, "LARGE_FILE", 1 << 20)
    few = ImageTable(tmp_path / "t.csv").read_index()
    for read in (index, again, of_csv):
        assert read.keys == few.keys
        assert (read.class_names, read.test_classes, read.roles) == (few.class_names, few.test_classes, few.roles)
        assert read.left_out == few.left_out == ("columns ignored: by",)
        np.testing.assert_array_equal(read.labels, few.labels)
    half = index.labels > 4
    assert index.select(half).keys[2:] == few.select(half).keys[2:]
    copied = pickle.dumps(index.keys)
    assert pickle.loads(copied) == few.keys
    assert b"png" not in copied  # a loader process maps the file


def test_they_are_read_once_and_anew_when_the_table_changes(tmp_path: Path, cache: Path, capsys) -> None:
    file = write(tmp_path / "t.parquet", **columns())
    before, _ = (ImageTable(file).read_index() for _ in range(2))
    changed = columns()
    changed["label"][0] = 8
    after = ImageTable(write(file, **changed)).read_index()
    assert capsys.readouterr().err.count("reading the rows of") == 2
    assert (before.labels[0], after.labels[0]) == (0, 8)
    assert len(list(cache.glob("tables/*.*"))) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file,class\na.png,0\n", "no column path and no column label: it has file, class"),
        ("path,label,Label\na.png,0,1\n", r"has 2 columns label \(label and Label\): rename all but one"),
        ("", "it has none"),
        ("path,label\n", "has no rows"),
        ("path,label\nok,a\n".encode("utf-16"), "not a CSV file in UTF-8"),
        (b"path,label\nok,a\ncaf\xe9,b\n", "row 3: path is not UTF-8 .*0xE9"),
        ("path,label\nok,a\na\0b,b\n", "row 3: path has a NUL byte"),
        ("path,label\na.png,0\n,1\n", "row 3: path is empty"),
        ("path,label\na.png,0\nb.png\n", "row 3: label is empty"),
        ("path,label\na.png,0\nb/../a.png,1\n", r"row 3: a\.png is already in row 2"),
        ("path,label\nwell, no,a\n", "row 2: 3 values for 2 .*double quotes"),
        ('path,label\na.png,0\n"b.png,0\nc.png,1\n', "row 3: a double quote is not closed"),
        ('path,label\na.png,0\n"b.png,9\nc.png",1\n', "row 3: path has several lines; close the double quote"),
        ("path,label,split\na,a,train\nb,c,test\nc,b,val\n", "row 4: split is 'val': give train or test"),
        ("path,label,split\na,a,train\nb,c,\n", "row 3: split is empty: give train or test"),
        ("path,label,split\na,a,train\nb,b,train\nc,a,Test\n", "row 4: class a is in test here and in train in row 2"),
        ("path,label,role\na,a,\nb,c,both\n", "row 3: role is 'both': give query or gallery or nothing"),
    ],
)
@pytest.mark.parametrize("large", [True, False])
def test_mistakes_are_one_line_with_the_row(
    text: str | bytes, message: str, large: bool, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(tables, "LARGE_FILE", 0 if large else 1 << 20)
    monkeypatch.setattr(tables, "AT_A_TIME", 1)
    (file := tmp_path / "images.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    for _ in range(2):  # of a large file the second time from its copy
        with pytest.raises(UserError, match=rf"images\.csv.*{message}") as raised:
            ImageTable(file).read_index()
        assert "\n" not in str(raised.value)


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
        with pytest.raises(UserError, match=f"has no {gone}"):
            dataset.load(gone)
    few = TextTable(write(tmp_path / "few.parquet", text=texts[:3], label=[0, 1, 0]))
    assert dataset.fingerprint(index.select([0, 1, 2])) != few.fingerprint(few.read_index())  # other classes


@pytest.mark.parametrize("as_struct", [True, False])
def test_images_inside_a_parquet_table(as_struct: bool, tmp_path: Path) -> None:
    """As `datasets` of Hugging Face writes it, with numbered classes; the third image is broken, the last missing."""
    images = []
    for height in (4, 5):
        Image.new("RGB", (4, height), (height * 40, 9, 9)).save(image := BytesIO(), "PNG")
        images.append(image.getvalue())
    column = pa.array([*images, b"?", None], pa.binary())
    stored = [{"bytes": image, "path": "x.png"} for image in column.to_pylist()] if as_struct else column
    features = {"info": {"features": {"label": {"names": ["wren", "jay"], "_type": "ClassLabel"}}}}
    written = pa.table({"img": stored, "label": [1, 0, 1, 0]}, metadata={"huggingface": json.dumps(features)})
    parquet.write_table(written, file := tmp_path / "t.parquet")
    dataset = ImageTable(file)
    index, problems = dataset.read_all()
    assert index.keys == ("row 1", "row 2", "row 3")
    assert (index.class_names, index.labels.tolist()) == (("jay", "wren"), [0, 1, 0])
    assert problems == [f"{file}, row 4: img is empty; fill it in or remove the row"]
    for read in (dataset, pickle.loads(pickle.dumps(dataset))):
        assert [read.load(key).size for key in index.keys[:2]] == [(4, 4), (4, 5)]
        for row, said in (("row 3", r"t\.parquet, row 3 is not an image"), ("row 4", "has no row 4")):
            with pytest.raises(UserError, match=said):
                read.load(row)
    assert [*dataset.contents_of(index.keys[:2])] == [hashlib.sha256(image).hexdigest() for image in images]
    with pytest.raises(UserError, match="has the images themselves"):
        samples_of(file, "image", "best.ckpt")


def test_tabs_and_gzip(tmp_path: Path) -> None:
    content = b"text\tlabel\nhello, you\t1\nbye\t2\n"
    packed = gzip.compress(content)
    for name, written in (("t.tsv", content), ("t.tsv.gz", packed), ("t.csv.gz", packed)):
        (tmp_path / name).write_bytes(written)
        dataset = dataset_from_path(str(tmp_path / name))
        assert [dataset[0], dataset[1]] == [("hello, you", 0), ("bye", 1)]
    (tmp_path / name).write_bytes(packed[:-9])
    with pytest.raises(UserError, match=r"t\..* is not a complete gzip file"):
        TextTable(tmp_path / name).read_index()


def test_a_group_is_a_number_of_each_sample(tmp_path: Path) -> None:
    groups = [f"camera {row % 4}" for row in range(ROWS)]
    index = ImageTable(write(tmp_path / "t.parquet", **columns(group=groups))).read_index()
    assert index.groups is not None
    assert index.groups.tolist() == [row % 4 for row in range(ROWS)]
    assert index.select([5, 2]).groups.tolist() == [1, 2]
    assert index.left_out == ()
    groups[4] = ""
    with pytest.raises(UserError, match="row 5: group is empty"):
        ImageTable(write(tmp_path / "t.parquet", **columns(group=groups))).read_index()


def test_long_texts_and_texts_of_several_lines(tmp_path: Path) -> None:
    long = "a word and " * 20_000
    content = f'text,label\n{long},a\n"Roses are red, violets are blue,\nand so on",a\n\n"bye, b\nsaid he",b\n'
    (file := tmp_path / "t.csv").write_text(content)
    assert TextTable(file).read_index().keys == ("row 2", "row 3", "row 6")
    file.write_text(f"text,label\nok,a\n{'x' * 10_000_001},a\n")
    with pytest.raises(UserError, match=r"row 3: .* a value is too long .*10000000"):
        TextTable(file).read_index()
