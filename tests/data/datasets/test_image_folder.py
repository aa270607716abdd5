"""A folder a class: order, what counts, what is refused, and what a fingerprint sees."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from levelfield.data.datasets.base import SampleIndex
from levelfield.data.datasets.image_folder import ImageFolder
from levelfield.errors import UserError


@pytest.fixture
def birds(tmp_path: Path) -> Path:
    for name in ("wren/b.png", "wren/a.JPG", "wren/young/c.png", "jay/x.png", "jay/.hidden.png", ".git/y.png"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), "red").save(file, "PNG")
    (tmp_path / "jay" / "notes.txt").write_text("seen in May")
    (tmp_path / "owl").mkdir()
    return tmp_path


def test_classes_and_samples_are_in_order_of_their_names(birds: Path) -> None:
    index = ImageFolder(birds).read_index()
    assert index.class_names == ("jay", "owl", "wren")
    assert index.keys == ("jay/x.png", "wren/a.JPG", "wren/b.png", "wren/young/c.png")
    assert index.labels.tolist() == [0, 2, 2, 2]
    assert index.labels.dtype == np.int64


def test_it_is_a_sequence(birds: Path) -> None:
    folder = ImageFolder(birds)
    image, label = folder[3]
    assert (len(folder), image.mode, label, folder.class_names[label]) == (4, "RGB", 2, "wren")


def test_read_index_reads_afresh(birds: Path) -> None:
    folder = ImageFolder(birds)
    assert len(folder.read_index().keys) == 4
    (birds / "jay" / "x.png").unlink()
    assert len(folder.read_index().keys) == 3


def test_the_fingerprint_sees_the_samples_it_is_given_and_no_others(birds: Path) -> None:
    folder = ImageFolder(birds)
    index = folder.read_index()
    of_wrens = folder.fingerprint(index.select(index.labels == 2))
    everything = folder.fingerprint(index)
    (birds / "jay" / "x.png").write_bytes(b"longer or shorter")
    assert folder.fingerprint(index.select(index.labels == 2)) == of_wrens
    assert folder.fingerprint(index) != everything
    (birds / "wren" / "a.JPG").unlink()
    with pytest.raises(UserError, match=r"wren/a\.JPG"):
        folder.fingerprint(index)


def test_selecting_keeps_labels_and_class_names() -> None:
    index = SampleIndex(("a", "b", "c"), np.array([0, 1, 1]), ("x", "y"))
    for chosen in ([2, 0], np.array([2, 0])):
        picked = index.select(chosen)
        assert (picked.keys, picked.labels.tolist(), picked.class_names) == (("c", "a"), [1, 0], ("x", "y"))
    assert index.select(index.labels == 1).keys == ("b", "c")
    assert index.select([]).keys == ()
    assert index.select(index.labels == 7).labels.shape == (0,)


def test_verify_counts_and_names_unreadable_files(birds: Path) -> None:
    (birds / "wren" / "b.png").write_bytes(b"no image")
    report = ImageFolder(birds).verify()
    assert (report.num_classes, report.num_samples, report.ok) == (3, 4, False)
    assert len(report.problems) == 1
    assert "b.png is not an image" in report.problems[0]


def test_missing_empty_and_flat_folders(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no folder .*nowhere"):
        ImageFolder(tmp_path / "nowhere").read_index()
    Image.new("RGB", (4, 4)).save(tmp_path / "flat.png")
    with pytest.raises(UserError, match="a folder of their own"):
        ImageFolder(tmp_path).read_index()
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no images"):
        ImageFolder(tmp_path).read_index()
