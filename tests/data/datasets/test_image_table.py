"""Tables of images: CSV and Parquet agree, and each mistake is named with its row."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from levelfield.data.datasets.image_table import ImageTable
from levelfield.data.datasets.images import open_image
from levelfield.errors import UserError


def table(folder: Path, text: str) -> ImageTable:
    file = folder / "images.csv"
    file.write_text(text, encoding="utf-8")
    return ImageTable(file)


@pytest.mark.parametrize(
    ("text", "keys", "names", "labels"),
    [
        ("path,label,by\na.png,10,x\nb.png,9,y\nc.png,10,z\nd.png,-1,x\n", "abcd", ("-1", "9", "10"), [2, 1, 2, 0]),
        (
            '\ufefflabel, path\nwren, a.png\n"jay, blue", b.png\n10, c.png\n',
            "abc",
            ("10", "jay, blue", "wren"),
            [2, 1, 0],
        ),
        ('"Path";Label\n./a.png;x, y\nb.png;z\n', "ab", ("x, y", "z"), [0, 1]),
        ("Path\tLABEL\na.png\tx\n", "a", ("x",), [0]),
        ("Path|label\na.png|3\nb.png|900\n", "ab", ("3", "900"), [0, 1]),
    ],
)
def test_whole_numbers_are_sorted_as_numbers_names_as_names_in_tables_of_any_kind(
    text: str, keys: str, names: tuple, labels: list, tmp_path: Path
) -> None:
    images = table(tmp_path, text)
    pd.DataFrame({"path": [f"{key}.png" for key in keys], "label": [names[label] for label in labels]}).to_parquet(
        tmp_path / "t.parquet"
    )
    for index in (images.read_index(), ImageTable(tmp_path / "t.parquet").read_index()):
        assert index.keys == tuple(f"{key}.png" for key in keys)
        assert (index.class_names, index.labels.tolist()) == (names, labels)


def test_paths_are_relative_to_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pictures").mkdir()
    Image.new("RGB", (3, 2), "red").save(tmp_path / "pictures" / "a.png")
    images = table(tmp_path, "path,label\npictures/a.png,0\n")
    monkeypatch.chdir("/")
    image = images.load("pictures/a.png")
    assert (image.size, image.getpixel((0, 0))) == ((3, 2), (255, 0, 0))


def test_a_missing_file_is_named_with_its_row_but_only_when_it_is_opened(tmp_path: Path) -> None:
    images = table(tmp_path, "path,label\na.png,0\n\ngone.png,1\n")
    index = images.read_index()
    with pytest.raises(UserError, match=r"images\.csv, row 4: no file .*gone\.png"):
        images.load("gone.png")
    with pytest.raises(UserError, match="row 4"):
        images.fingerprint(index.select([1]))


@pytest.mark.parametrize(
    ("on_disk", "in_table", "remedy"),
    [
        ("cafe\u0301.png", "caf\u00e9.png", "NFD"),
        ("caf\u00e9.png", "cafe\u0301.png", "NFC"),
        ("cafe.png", ".\\cafe.png", "/"),
    ],
)
def test_another_spelling_of_a_missing_file_is_named(on_disk: str, in_table: str, remedy: str, tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / on_disk)
    (fault,) = table(tmp_path, f"path,label\n{in_table},0\n").verify().problems
    assert "row 2" in fault
    assert f"write {remedy}" in fault.replace("its letters in the Unicode form ", "")
    with pytest.raises(UserError, match="write"):
        open_image(tmp_path / in_table)


@pytest.mark.parametrize("column", ["image", "path"])
def test_images_inside_a_parquet_table_are_refused_with_their_column(column: str, tmp_path: Path) -> None:
    file = tmp_path / "t.parquet"
    pd.DataFrame({column: [{"bytes": b"?", "path": "a.png"}], "label": [1]}).to_parquet(file)
    with pytest.raises(UserError, match=f"column {column} has the images"):
        ImageTable(file).read_index()
    pd.DataFrame({"image": [{"bytes": b"?"}], "path": ["a.png"], "label": [1]}).to_parquet(file)
    assert ImageTable(file).read_index().keys == ("a.png",)


def test_verify_names_labels_without_a_meaning_and_nearly_black_images(tmp_path: Path) -> None:
    """A camera's 12 bits end at 4095: of 65535 that is 16 of 255."""
    for name, levels in (("dark", 4095), ("bright", 65535)):
        Image.fromarray(np.array([[0, levels]], np.uint16)).save(tmp_path / f"{name}.png")
        Image.new("RGB", (4, 4), "white").save(tmp_path / f"{name}_too.png")
    labels = {"dark": "NaN", "bright": "a", "dark_too": "-1", "bright_too": "None"}
    rows = "".join(f"{name}.png,{label}\n" for name, label in labels.items())
    report = table(tmp_path, f"path,label\n{rows}").verify()
    assert report.ok
    (missing,) = [line for line in report.overview if "missing label" in line]
    assert missing.endswith(": '-1', 'NaN', 'None'")
    (dark,) = [line for line in report.overview if "black" in line]
    assert "1 image, such as dark.png" in dark


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file,class\na.png,0\n", "no column path and no column label: it has file, class"),
        ("path,label,Label\na.png,0,1\n", r"has 2 columns label \(label and Label\): rename all but one"),
        ("path,label,path\na.png,0,b.png\n", "has 2 columns path"),
        ('path,label\na.png,0\n"b.png,0\nc.png,1\n', "row 3: a double quote is not closed"),
        ('path,label\na.png,0\n"b.png,0\nc.png,1\nd.png",1\n', "row 3: a value contains the next 2 rows; close"),
        ('path,label\na.png,0\n"b.png,9\nc.png",1\n', "row 3: path has several lines; close the double quote"),
        ("path,label\na.png,0\nb/../a.png,1\n", r"row 3: b/\.\./a\.png is already in row 2"),
        ("", "it has none"),
        ("path,label\n", "has no rows"),
        ("path,label\na.png,0\nb.png\n", "row 3: label is empty"),
        ("path,label\n,0\n", "row 2: path is empty"),
        ("path,label\na.png,0\nb.png,1\na.png,1\n", r"row 4: a\.png is already in row 2"),
    ],
)
def test_mistakes_in_a_table(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        table(tmp_path, text).read_index()


def test_parquet_columns_of_other_types(tmp_path: Path) -> None:
    frame = pd.DataFrame({"path": ["a", "b"], "label": [2**53 + 1, None]}, dtype=object)
    frame.to_parquet(tmp_path / "whole.parquet")
    with pytest.raises(UserError, match="row 2: label is empty"):
        ImageTable(tmp_path / "whole.parquet").read_index()
    frame[:1].to_parquet(tmp_path / "whole.parquet")
    assert ImageTable(tmp_path / "whole.parquet").class_names == (str(2**53 + 1),)
    pd.DataFrame({"path": [b"a", b"\xff"], "label": [1, 2]}).to_parquet(tmp_path / "bytes.parquet")
    with pytest.raises(UserError, match="row 2: path is not UTF-8"):
        ImageTable(tmp_path / "bytes.parquet").read_index()
    pd.DataFrame({"path": ["a"], "label": [["x", "y"]]}).to_parquet(tmp_path / "lists.parquet")
    with pytest.raises(UserError, match=r"the column label has the type list<.*>: give one value per row"):
        ImageTable(tmp_path / "lists.parquet").read_index()


def test_metadata_is_each_column_with_one_name_and_one_value_per_row(tmp_path: Path) -> None:
    columns = {"path": ["a", "b"], "label": [1, 2], "price": [3, 4], "box": [[1, 2], [3, 4]]}
    pd.DataFrame(columns).to_parquet(tmp_path / "t.parquet")
    repeated = table(tmp_path, "path,label,price,note,Note\na,1,3,x,y\nb,2,4,x,y\n")
    for images in (ImageTable(tmp_path / "t.parquet"), repeated):
        metadata = images.read_metadata(images.read_index())
        assert {name: column.names for name, column in metadata.items()} == {"price": ["3", "4"]}


def test_tables_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin.csv").write_bytes("path,label\na.png,café\n".encode("latin-1"))
    (tmp_path / "text.parquet").write_text("path,label\n")
    for name, said in {
        "nowhere.csv": r"no table .*nowhere\.csv",
        "table.xlsx": r"\.csv or \.parquet",
        "latin.csv": "UTF-8",
        "text.parquet": "not a readable Parquet file",
    }.items():
        with pytest.raises(UserError, match=said):
            ImageTable(tmp_path / name).read_index()
