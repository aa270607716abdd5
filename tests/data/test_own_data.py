"""One's own data as they lie on a disk: all commands say the same of them, and their place stays on the machine."""

import re
from pathlib import Path

import numpy as np
import pytest
from own_images import image_options, own_images
from PIL import Image
from refused import refused, succeeded
from tiny_text import own_texts

from levelfield.core.configuration import parse_value
from levelfield.core.errors import UserError
from levelfield.data import ImageTable
from levelfield.data.datamodule import MetricDataModule
from levelfield.data.dataset import find_file
from levelfield.data.own import dataset_from_path
from levelfield.data.verify import verify
from levelfield.study.first_look import look_at_rows
from levelfield.study.rows import load_spec


def in_study(toy_file: Path, words: list[str]) -> list[str]:
    """What a study prints of its data before the first job."""
    overrides = dict(zip([word[2:] for word in words[::2]], map(parse_value, words[1::2]), strict=True))
    spec = load_spec(toy_file, {**overrides, "search.trials": 0})
    return look_at_rows(spec).overview


SAID = [
    "image_table: 19 classes, 55 samples",
    "columns ignored: by",
    "1 class with one sample, which balanced batches leave out and no score takes as a query: zebra finch",
    "1 test class with queries only, which are not scored: zebra finch",
]


def test_all_say_the_same_of_a_table(run, tiny, toy_file, tmp_path) -> None:
    """18 classes of 3 images and one of 1, in a table as a spreadsheet writes it where the comma parts decimals."""
    rows = ["Path;by;Label;Split;ROLE"]
    for number, label in enumerate(["Bird 1", *(f"bird {number:02d}" for number in range(16)), "wren", "zebra finch"]):
        half = "Train" if label < "bird 08" else "test"
        for suffix, role in ((".png", "Query"), (".jfif", "Query"), (".jp2", "gallery"))[: 1 if number == 18 else 3]:
            path = tmp_path / f"{number}{suffix}"
            Image.new("RGB", (40, 40), (number * 10, len(rows), 9)).save(path, Image.registered_extensions()[suffix])
            rows.append(f"./{path.name};me;{label};{half};{role if half == 'test' or len(rows) == 1 else ''}")
    (table := tmp_path / "birds.csv").write_text("\n".join(rows) + "\n")
    words = image_options(tiny, table)
    verified = succeeded(run("data", "verify", table))
    assert [line.strip().partition("; every")[0] for line in verified.splitlines()][: len(SAID)] == SAID
    fit = ("fit", *words, "--model.loss", "ArcFaceLoss", "--output", tmp_path / "outputs")
    assert "\n".join(SAID) in succeeded(run(*fit))
    assert in_study(toy_file, words[-4:]) == SAID


def test_all_refuse_a_table_with_rows_that_cannot_be_used(run, tiny, toy_file, tmp_path) -> None:
    Image.new("RGB", (40, 40)).save(tmp_path / "1.png")
    rows = ["path,label", "1.png,a", ",a", "./1.png,b", '"b.png,a', 'c.png",b', "d.png,a,b"]
    (table := tmp_path / "broken.csv").write_text("\n".join(rows))
    code, verified, _ = run("data", "verify", table)
    assert code == 2
    found, *problems = (line.strip() for line in verified.splitlines())
    assert found == "image_table: 1 class, 1 sample; 4 problems"
    problems = [problem for problem in problems if "broken.csv, row " in problem]
    assert [problem.partition("row ")[2][0] for problem in problems] == ["3", "4", "5", "7"]
    first = f"{problems[0]} (3 more like this)"
    code, _, complaint = run("fit", *image_options(tiny, table), "--model.loss", "ArcFaceLoss", "--output", tmp_path)
    assert (code, complaint.strip()) == (2, f"levelfield: {first}")
    with pytest.raises(UserError, match=f"^{re.escape(first)}$"):
        in_study(toy_file, image_options(tiny, table)[-4:])


def test_a_path_is_what_it_looks_like(tmp_path: Path) -> None:
    (tmp_path / "texts.csv").write_text("Text;Label\nhello;a\n")
    (tmp_path / "images.csv").write_text("text,label,path\nhello,a,1.PNG\n")
    kinds = [type(dataset_from_path(str(tmp_path / name))).__name__ for name in ("texts.csv", "images.csv", ".")]
    assert kinds == ["TextTable", "ImageTable", "ImageFolder"]
    assert dataset_from_path(str(tmp_path / "texts.xlsx")) is None
    with pytest.raises(UserError, match="rename the column path"):
        ImageTable(tmp_path / "images.csv").file_of("1.PNG")


def test_a_relative_path_is_sought_below_the_root(tmp_path: Path, run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEVELFIELD_DATA", raising=False)
    (tmp_path / "birds").mkdir()
    own_images(tmp_path / "birds")
    assert find_file("birds/table.csv", None) == Path("birds/table.csv")
    data = MetricDataModule(ImageTable("birds/table.csv"), root=str(tmp_path))
    assert data.identity()["dataset"]["init_args"] == {"table": "birds/table.csv"}
    assert data.overview()[0] == "image_table: 16 classes, 64 samples"
    assert run("data", "verify", "birds/table.csv", "--data.root", tmp_path)[0] == 0
    monkeypatch.setenv("LEVELFIELD_DATA", str(tmp_path))
    assert len(ImageTable("birds/table.csv")) == 64


def test_a_trunk_of_images_is_refused_for_texts(run, tmp_path: Path) -> None:
    words = ("--data.dataset", "TextTable", "--data.dataset.table", own_texts(tmp_path), "--data.num_folds", "2")
    result = run("fit", *words, "--model.loss", "ContrastiveLoss", "--output", tmp_path / "out")
    refused(result, "TextTable holds texts, TimmTrunk takes images", "--config trunk/minilm")


# The names of files, which begin with their class, and the numbers of their pictures.
PICTURES = {"a.png": 1, "a again.bmp": 1, "a alone.png": 2, "b.png": 3, "c.png": 4, "d.png": 3, "d also c.png": 4}


def test_duplicates_come_with_what_they_cross(tmp_path: Path) -> None:
    for name, number in PICTURES.items():
        noise = np.random.default_rng(number).integers(0, 255, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / name)
    (tmp_path / "images.csv").write_text("\n".join(["path,label", *(f"{name},{name[0]}" for name in PICTURES)]))
    report = verify(dataset := ImageTable(tmp_path / "images.csv"))
    assert not report.problems
    # By halves a and b are trained on, c and d tested: b = d crosses, c = d is in two test classes, a = a in one.
    assert report.duplicates == [
        "3 samples are there more than once, 2 in several classes, 1 in both halves",
        "  in both halves: b.png (b, training) = d.png (d, test)",
        "  in 2 classes: c.png (c, test) = d also c.png (d, test)",
        "  in one class: a.png (a, training) = a again.bmp (a, training)",
    ]
    (tmp_path / "b.png").write_bytes(b"")
    broken = verify(dataset)
    assert len(broken.problems) == 1
    assert broken.duplicates[1:] == report.duplicates[2:]
