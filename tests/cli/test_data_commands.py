"""`levelfield data`: what is there, whether it is whole, and one line for each mistake."""

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import pytest
from PIL import Image
from printed import numbers
from refused import succeeded

from levelfield.cli.data import named_datasets


@pytest.fixture(autouse=True)
def no_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEVELFIELD_DATA", raising=False)


@pytest.fixture
def small_omniglot(tmp_path: Path) -> Path:
    """A data folder whose Omniglot has two characters with a drawing each, the second one truncated."""
    Image.new("1", (105, 105)).save(drawing := BytesIO(), "PNG")
    (tmp_path / "omniglot").mkdir()
    for part, alphabet, size in (("images_background", "Greek", None), ("images_evaluation", "Tengwar", 40)):
        with ZipFile(tmp_path / "omniglot" / f"{part}.zip", "w") as archive:
            archive.writestr(f"{part}/{alphabet}/character01/0001_01.png", drawing.getvalue()[:size])
    return tmp_path


def test_list_tells_what_is_there_and_what_is_broken(small_omniglot: Path, run: Callable) -> None:
    (small_omniglot / "grocery_store").mkdir()
    table, _, below = succeeded(run("data", "list", "--root", small_omniglot)).partition("\nsop")
    rows = [line.split()[:4] for line in table.splitlines()]
    for row in ("glyphs 1,228 16,752 yes", "omniglot 1,623 32,460 yes", "cub200 200 11,788 no"):
        assert row.split() in rows
    assert max(len(line) for line in table.splitlines()) <= 120
    assert f"{small_omniglot}/grocery_store/dataset/classes.csv" in below
    assert "cub200" not in below  # what was never fetched is no mistake


# Of each named data set the published numbers of classes and of samples.
PUBLISHED = """
banking77 77 13083, cars196 196 16185, clinc150 150 22500, cub200 200 11788, glyphs 1228 16752,
grocery_store 81 5421, inshop 7982 52712, news20 20 18846, omniglot 1623 32460, sop 22634 120053
"""


def test_list_has_the_named_data_sets_with_their_published_counts() -> None:
    found = [(name, kind.num_classes_published, kind.num_samples_published) for name, kind in named_datasets().items()]
    published = [tuple(words.split()) for words in PUBLISHED.split(",")]
    assert sorted(tuple(map(str, each)) for each in found) == published


def test_a_card_has_all_that_is_known(small_omniglot: Path, run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEVELFIELD_DATA", str(small_omniglot))
    omniglot, cub = succeeded(run("data", "list", "omniglot", "cub200")).split("\ncub200\n")
    facts = dict(line.strip().split(": ", 1) for line in omniglot.splitlines() if ": " in line)
    wanted = {"counts": "1,623 classes, 32,460 samples (image)", "licence": "MIT", "ready": "yes"}
    wanted |= {"source": "https://github.com/brendenlake/omniglot", "folder": f"{small_omniglot}/omniglot"}
    assert facts.items() >= wanted.items()
    assert facts["root"].startswith("holds `omniglot/` with `images_background.zip`")
    assert "CUB_200_2011.tgz: 1.2 GB, SHA-256 0c685df5597a8b24909f6a7c9db6d11e008733779a671760afef78feb49bf081" in cub
    assert f"no folder {small_omniglot}/cub200" in cub


def test_verify_lists_every_problem_and_exits_with_2(small_omniglot: Path, run: Callable) -> None:
    code, printed, _ = run("data", "verify", "omniglot", "--data.root", small_omniglot)
    *counts, broken = printed.splitlines()
    found = [numbers(line) for line in counts]
    assert (code, found) == (2, [[2, 2, 3], [2, 1623], [2, 32460]]), "classes, samples, problems"
    assert "images_evaluation/Tengwar/character01/0001_01.png" in broken


@pytest.mark.full
def test_verify_opens_the_real_data(data_root: Path, run: Callable) -> None:
    printed = succeeded(run("data", "verify", "grocery_store", "omniglot", "--root", data_root))
    *counts, twice = printed.splitlines()
    assert [numbers(line) for line in counts] == [[81, 5421], [1623, 32460], [1, 0, 0]]
    drawings = "images_background/Braille/character01/0192_03.png", "images_background/Braille/character01/0192_19.png"
    assert all(drawing in twice for drawing in drawings)


def test_verify_opens_ones_own_data(tmp_path: Path, run: Callable) -> None:
    for name, shade in (("a/1", 110), ("a/2", 120), ("b/1", 120)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (8, 8), (shade, 0, 0)).save(tmp_path / f"{name}.png")
    images, texts, both = (tmp_path / f"{name}.csv" for name in ("images", "texts", "both"))
    images.write_text("path,label\na/1.png,a\na/2.png,a\nb/1.png,b\n")
    texts.write_text("text,label\ngood day,a\nbye,b\n")
    lines = succeeded(run("data", "verify", images, texts, tmp_path)).splitlines()
    assert [numbers(line) for line in lines if ".png" not in line] == [
        *([2, 3], [1], [1], [1, 1, 1]),  # classes and samples, classes of one sample, to train on, samples twice
        *([2, 2], [2], [1]),
        *([2, 3], [2], [1], [1], [1, 1, 1]),  # two files are left out
    ]
    twice = [line for line in lines if ".png" in line]
    assert len(twice) == 2
    assert all("a/2.png (a, training)" in line and "b/1.png (b, test)" in line for line in twice)
    (tmp_path / "b" / "1.png").unlink()
    for file, named in ((images, "images.csv, row 4"), (tmp_path / "nowhere.csv", f"{tmp_path}/nowhere.csv")):
        code, printed, _ = run("data", "verify", file)
        assert (code, named in printed) == (2, True)
    both.write_text("text,label,path\ngood day,a,a/1.png\nbye,b,a/2.png\n")
    assert "image_table: 2 classes, 2 samples" in succeeded(run("data", "verify", both))
