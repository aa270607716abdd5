"""Duplicates by content: in both halves, in several classes, in one class; nothing is opened by a fit."""

from pathlib import Path

import numpy as np
from PIL import Image

from levelfield.data.datasets import ImageTable, TextTable
from levelfield.data.duplicates import describe_duplicates


def noise(number: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(number).integers(0, 255, (8, 8, 3), dtype=np.uint8))


def image_table(folder: Path, content: dict[str, tuple[str, int]], columns: str = "") -> ImageTable:
    """A table of images: name -> (rest of its row, number of its picture)."""
    for name, (_, number) in content.items():
        noise(number).save(folder / name)
    rows = [f"{name},{rest}" for name, (rest, _) in content.items()]
    (folder / "images.csv").write_text("\n".join([f"path,label{columns}", *rows]))
    return ImageTable(folder / "images.csv")


CONTENT = {
    "a.png": ("a", 1),
    "a again.bmp": ("a", 1),  # another file of the same pixels
    "a alone.png": ("a", 2),
    "b.png": ("b", 3),
    "c.png": ("c", 4),
    "d.png": ("d", 3),
    "d also c.png": ("d", 4),
}


def test_duplicates_come_with_what_they_cross(tmp_path: Path) -> None:
    dataset = image_table(tmp_path, CONTENT)
    found = dataset.verify().duplicates
    # By halves a and b are trained on, c and d tested: b = d crosses, c = d is in two test classes, a = a in one.
    assert [(same.keys, same.in_both_halves, same.in_several_classes) for same in found] == [
        (("b.png", "d.png"), True, True),
        (("c.png", "d also c.png"), False, True),
        (("a.png", "a again.bmp"), False, False),
    ]
    assert describe_duplicates(found) == [
        "3 samples are there more than once, 2 in several classes, 1 in both halves",
        "  in both halves: b.png (b, training) = d.png (d, test)",
        "  in 2 classes: c.png (c, test) = d also c.png (d, test)",
        "  in one class: a.png (a, training) = a again.bmp (a, training)",
    ]


def test_the_tables_own_split_decides_the_halves(tmp_path: Path) -> None:
    halves = {"a": "train", "b": "test", "c": "train", "d": "test"}
    content = {name: (f"{label},{halves[label]}", number) for name, (label, number) in CONTENT.items()}
    dataset = image_table(tmp_path, content, ",split")
    crossing = [same.keys for same in dataset.verify().duplicates if same.in_both_halves]
    assert crossing == [("c.png", "d also c.png")]


def test_verify_calls_them_no_problem_and_goes_on_without_broken_images(tmp_path: Path) -> None:
    dataset = image_table(tmp_path, CONTENT)
    assert dataset.verify().ok
    (tmp_path / "b.png").write_bytes(b"")
    report = dataset.verify()
    assert len(report.problems) == 1
    assert [same.keys for same in report.duplicates] == [("c.png", "d also c.png"), ("a.png", "a again.bmp")]


def test_texts(tmp_path: Path) -> None:
    table = tmp_path / "texts.csv"
    table.write_text("text,label\nwhere is my card,card\nlost it,lost\nwhere is my card,lost\nLost it,lost\n")
    (same,) = TextTable(table).verify().duplicates
    assert str(same) == "in both halves: row 2 (card, training) = row 4 (lost, test)"
