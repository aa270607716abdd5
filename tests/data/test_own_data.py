"""One's own data as they lie on a disk: `data verify`, `fit` and `study` say the same, and nothing is silent."""

from collections.abc import Callable
from pathlib import Path

import pytest
from own_images import image_options
from PIL import Image
from tiny_text import tiny_text_model

from levelfield.core.configuration import parse_value
from levelfield.data.own import own_dataset
from levelfield.errors import UserError
from levelfield.study.first_look import look_at_rows
from levelfield.study.rows import load_spec
from levelfield.study.workers import GivenUp

SHADES = (0, 60, 120)


def draw(folder: Path, class_name: str, number: int, suffixes: tuple[str, ...] = (".png", ".jfif", ".jp2")) -> None:
    (folder / class_name).mkdir(parents=True, exist_ok=True)
    for suffix, shade in zip(suffixes, SHADES, strict=False):
        picture = Image.new("RGB", (40, 40), (number * 10, shade, 99))
        picture.save(folder / class_name / f"1{suffix}", Image.registered_extensions()[suffix])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """18 classes of 3 images and one of 1, and whatever else lies in folders."""
    folder = tmp_path / "birds"
    for number in range(16):
        draw(folder, f"bird {number:02d}", number)
    draw(folder, "Bird 1", 16)
    draw(folder, "wren", 17)
    draw(folder, "zebra finch", 18, (".png",))
    for name in ("__MACOSX/bird 01/._1.png", "flat.png", "wren/notes.txt", "wren/1.heic", "wren/.DS_Store"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"?")
    (folder / "owl").mkdir()
    return folder


FOLDER = [
    "image_folder: 19 classes, 55 samples",
    "1 left out: .heic, not an image that Pillow opens here",
    "1 left out: .txt, not an image that Pillow opens here",
    "1 left out: __MACOSX, a file of another program",
    "1 left out: hidden (the name begins with a dot)",
    "1 left out: next to the class folders, in none of them",
    "1 class without a sample, in no fold: owl",
    "1 class with one sample, which has no match: zebra finch",
    "labels that differ only by case, blanks or leading zeros are different classes: 'Bird 1' and 'bird 01'",
]


@pytest.fixture
def table(folder: Path) -> Path:
    """The same images in a table as a spreadsheet writes it where the comma parts decimals."""
    rows = ["Path;by;Label;Split;ROLE"]
    for path in sorted(folder.glob("*/1.*")):
        label = path.parent.name
        half = "Train" if label < "bird 08" else "test"
        role = "" if half == "Train" or path.suffix == ".heic" else "gallery" if path.suffix == ".jp2" else "Query"
        if path.suffix != ".heic":
            rows.append(f"./{label}/{path.name};me;{label};{half};{role}")
    rows[1] = rows[1][: rows[1].rindex(";")] + ";query"  # of a training row
    (folder / "birds.csv").write_text("\n".join(rows) + "\n")
    return folder / "birds.csv"


TABLE = [
    "image_table: 19 classes, 55 samples",
    "columns ignored, except by a loss with metadata: by",
    "1 class with one sample, which has no match: zebra finch",
    "labels that differ only by case, blanks or leading zeros are different classes: 'Bird 1' and 'bird 01'",
    "roles outside the test half have no effect: 1 sample with one",
    "1 test class with queries only, which are not scored: zebra finch",
]


def in_study(toy_file: Path, words: list[str]) -> list[str]:
    """What a study prints of its data before the first job."""
    overrides = dict(zip([word[2:] for word in words[::2]], map(parse_value, words[1::2]), strict=True))
    spec = load_spec(toy_file, {**overrides, "search.trials": 0})
    return look_at_rows(spec, set(), GivenUp(print)).overview


def said_by_all(run: Callable, tiny: list[str], toy_file: Path, place: Path, tmp_path: Path) -> list[list[str]]:
    words = image_options(tiny, place, place if place.is_dir() else None)
    code, verified, _ = run("data", "verify", place)
    assert code == 0
    code, fitted, complaint = run("fit", *words, "--model.loss", "ArcFaceLoss", "--output", tmp_path / "outputs")
    assert code == 0, complaint
    first, *others = (line.strip() for line in verified.splitlines())
    number = fitted.splitlines().index(first.partition(";")[0])
    studied = in_study(toy_file, words[-4:])
    verified = [first.partition(";")[0], *others][: len(studied)]
    return [verified, fitted.splitlines()[number : number + len(studied)], studied]


def test_all_say_the_same_of_a_folder(
    run: Callable, tiny: list[str], toy_file: Path, folder: Path, tmp_path: Path
) -> None:
    assert said_by_all(run, tiny, toy_file, folder, tmp_path) == [FOLDER] * 3


def test_all_say_the_same_of_a_table(
    run: Callable, tiny: list[str], toy_file: Path, table: Path, tmp_path: Path
) -> None:
    assert said_by_all(run, tiny, toy_file, table, tmp_path) == [TABLE] * 3


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Texts of one and of several lines, a long one, and what is odd of labels, columns, roles and splits."""
    rows = ["Text\tby\tLABEL\tSplit\tRole"]
    for number in range(18):
        label = f"topic {number:02d}" if number else "Topic 1"
        half = "Train" if number < 9 else "test"
        for sample in range(3):
            role = "" if half == "Train" else "Query" if sample else "gallery"
            rows.append(f'"About {number},\nthe text {sample}"\tme\t{label}\t{half}\t{role}')
    rows.append(f"{'long ' * 30_000}\tme\ttopic 01\tTRAIN\tquery")
    rows.append("alone\tme\tzebra\ttest\tquery")
    (tmp_path / "texts.csv").write_text("\ufeff" + "\n".join(rows) + "\n")
    return tmp_path / "texts.csv"


TEXTS = [
    "text_table: 19 classes, 56 samples",
    "columns ignored, except by a loss with metadata: by",
    "1 class with one sample, which has no match: zebra",
    "labels that differ only by case, blanks or leading zeros are different classes: 'Topic 1' and 'topic 01'",
    "roles outside the test half have no effect: 1 sample with one",
    "1 test class with queries only, which are not scored: zebra",
]


def test_all_say_the_same_of_a_table_of_texts(run: Callable, toy_file: Path, texts: Path, tmp_path: Path) -> None:
    trunk = tiny_text_model(tmp_path / "tiny")
    words = ["--model.trunk", "TransformersTrunk", "--model.trunk.name", str(trunk), "--model.trunk.weights", "null"]
    words += ["--model.trunk.max_length", "64", "--data.dataset", "TextTable", "--data.dataset.table", str(texts)]
    code, verified, _ = run("data", "verify", texts)
    assert code == 0
    usual = ["--model.loss", "ArcFaceLoss", "--data.steps_per_epoch", "1", "--trainer.max_epochs", "1"]
    code, fitted, complaint = run("fit", *words, *usual, "--output", tmp_path / "outputs")
    assert code == 0, complaint
    assert fitted.splitlines()[: len(TEXTS)] == TEXTS
    assert verified.replace("; every sample opens", "").replace("\n  ", "\n").splitlines()[: len(TEXTS)] == TEXTS
    assert in_study(toy_file, [*words, "--data.transforms", "null"]) == TEXTS


ROWS = ["path,label", "a.png,a", ",a", "./a.png,b", '"b.png,a', 'c.png",b', "d.png,a,b"]


def test_all_refuse_a_table_with_rows_that_cannot_be_used(
    run: Callable, tiny: list[str], toy_file: Path, tmp_path: Path
) -> None:
    draw(tmp_path, ".", 0)
    table = tmp_path / "broken.csv"
    table.write_text("\n".join(ROWS).replace("a.png", "1.png") + "\n")
    code, verified, _ = run("data", "verify", table)
    assert code == 2
    found, *problems = (line.strip() for line in verified.splitlines())
    assert found == "image_table: 1 class, 1 sample; 4 problems"
    problems = [problem for problem in problems if "broken.csv, row " in problem]
    assert [problem.partition("row ")[2][0] for problem in problems] == ["3", "5", "7", "4"]
    first = f"{problems[0]} (3 more like this)"
    code, _, complaint = run("fit", *image_options(tiny, table), "--model.loss", "ArcFaceLoss", "--output", tmp_path)
    assert (code, complaint.strip()) == (2, f"levelfield: {first}")
    with pytest.raises(UserError) as refused:
        in_study(toy_file, image_options(tiny, table)[-4:])
    assert str(refused.value) == first


def test_a_path_is_what_it_looks_like(tmp_path: Path) -> None:
    (tmp_path / "texts.csv").write_text("Text;Label;Path\nhello;a;1.txt\n")
    (tmp_path / "images.csv").write_text("text,label,path\nhello,a,1.PNG\n")
    kinds = [type(own_dataset(str(tmp_path / name))).__name__ for name in ("texts.csv", "images.csv", ".")]
    assert kinds == ["TextTable", "ImageTable", "ImageFolder"]
    assert own_dataset(str(tmp_path / "texts.xlsx")) is None


@pytest.mark.parametrize(
    ("classes", "split", "words"),
    [
        (12, "", "6 classes to train and validate on: enough for 3 folds, fewer than the usual 4"),
        (6, "", "3 classes to train and validate on: too few for folds"),
        (4, "test", "0 classes to train and validate on: too few for folds"),
        (1, "", "0 classes to train and validate on: too few for folds"),
    ],
)
def test_too_few_classes_for_folds_are_said(
    run: Callable, tmp_path: Path, classes: int, split: str, words: str
) -> None:
    rows = ["path,label,split" if split else "path,label"]
    for number in range(classes):
        draw(tmp_path, f"bird {number}", number, (".png", ".jp2"))
        rows += [f"bird {number}/1{suffix},{number}{split and ','}{split}" for suffix in (".png", ".jp2")]
    (tmp_path / "birds.csv").write_text("\n".join(rows) + "\n")
    code, printed, complaint = run("data", "verify", tmp_path / "birds.csv")
    assert code == 0, complaint
    assert words in printed
