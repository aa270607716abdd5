"""Typefaces: the counts, the pictures, the licences, and that no family looks like another."""

import csv
import pickle
from importlib.metadata import metadata
from pathlib import Path

import numpy as np
import pytest

from levelfield.data.datasets import typefaces as module
from levelfield.data.datasets.typefaces import FACES, FAMILIES, WORDS, Typefaces
from levelfield.errors import UserError

pytest.importorskip("fontpkg_zilla_slab", reason="needs the extra typefaces")


def families() -> list[dict[str, str]]:
    with FAMILIES.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def ink_of(keys: list[str]) -> np.ndarray:
    typefaces = Typefaces()
    return np.stack([255 - np.asarray(typefaces.load(key))[:, :, 0].astype(np.float32) for key in keys])


def test_counts() -> None:
    index = Typefaces().read_index()
    assert len(index.class_names) == len(set(index.class_names)) == 186
    assert np.bincount(index.labels).tolist() == [60] * 186
    assert len(set(index.keys)) == 186 * 60
    assert list(index.class_names) == sorted(index.class_names)
    assert index.class_names[0] == "000 ABeeZee"
    assert len(Typefaces(num_classes=8)) == 480


def test_words_say_nothing_about_the_class() -> None:
    index = Typefaces().read_index()
    assert len({word.lower() for word in WORDS}) == len(WORDS) == 60
    for label in range(186):
        words = [key.rpartition("/")[2] for key in np.array(index.keys)[index.labels == label]]
        assert tuple(words) == WORDS


def test_a_family_s_faces_take_turns() -> None:
    keys = Typefaces().read_index().keys
    faces = {package: {} for package in ("fontpkg-inter", "fontpkg-lato", "fontpkg-abel")}
    for key in keys:
        package, face, _ = key.split("/")
        if package in faces:
            faces[package][face] = faces[package].get(face, 0) + 1
    assert faces["fontpkg-inter"] == {"regular": 15, "bold": 15, "italic": 15, "bolditalic": 15}  # a variable font
    assert faces["fontpkg-lato"] == faces["fontpkg-inter"]  # a file a face
    assert faces["fontpkg-abel"] == {"regular": 60}
    for package in ("fontpkg-inter", "fontpkg-lato"):
        regular, bold = ink_of([f"{package}/regular/Rag", f"{package}/bold/Rag"]).sum(axis=(1, 2))
        assert bold > 1.2 * regular


def test_pictures_are_whole_centred_and_the_same_in_a_copy() -> None:
    typefaces = Typefaces()
    keys = list(typefaces.read_index().keys[::37])
    pictures = ink_of(keys)
    assert pictures.shape[1:] == (64, 64)
    assert pictures.sum(axis=(1, 2)).min() > 20 * 255
    assert np.concatenate([pictures[:, :4].ravel(), pictures[:, -4:].ravel()]).max() == 0
    assert max(pictures[:, :, :4].max(), pictures[:, :, -4:].max()) == 0
    columns = pictures.max(axis=1) > 64
    left, right = columns.argmax(axis=1), columns[:, ::-1].argmax(axis=1)
    assert abs(left - right).max() <= 4
    copy = pickle.loads(pickle.dumps(typefaces))
    assert np.array_equal(np.asarray(copy.load(keys[0])), np.asarray(typefaces.load(keys[0])))


def test_every_family_is_under_an_open_licence_and_listed_with_it() -> None:
    for row in families():
        about = metadata(row["package"])
        assert about["License-Expression"] == row["licence"]
        assert row["licence"] in ("OFL-1.1", "Apache-2.0")
        assert about["Version"] == row["version"]
    assert sum(row["licence"] == "Apache-2.0" for row in families()) == 5  # as `licence` says


def test_the_extra_installs_exactly_the_listed_versions() -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 has it")
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    expected = [f"{row['package']}=={row['version']}" for row in families()]
    assert project["optional-dependencies"]["typefaces"] == expected


@pytest.mark.slow
@pytest.mark.full
def test_no_family_looks_like_another() -> None:
    packages = [row["package"] for row in families()]
    alike, compared = np.zeros((2, 186, 186), dtype=int)
    for face in FACES:
        having = np.array([face in module._faces(package) for package in packages])
        compared[np.ix_(having, having)] += len(WORDS)
        for word in WORDS:
            ink = ink_of([f"{packages[label]}/{face}/{word}" for label in np.flatnonzero(having)])
            ink = ink.reshape(len(ink), -1)
            squares = (ink**2).sum(axis=1)
            difference = squares[:, None] + squares - 2 * ink @ ink.T
            alike[np.ix_(having, having)] += difference <= 0.02 * np.maximum(squares[:, None], squares)
    assert np.triu(alike / compared, k=1).max() <= 0.5


def test_without_the_extra_one_line_names_it(monkeypatch, run) -> None:
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    module._faces.cache_clear()
    with pytest.raises(UserError, match=r"fontpkg-abeezee are not installed: pip install 'levelfield\[typefaces\]'"):
        Typefaces().read_index()
    code, printed, _ = run("data", "list", "typefaces")
    assert code == 0
    assert "pip install 'levelfield[typefaces]'" in printed


def test_verify_names_a_package_of_another_version(monkeypatch) -> None:
    assert Typefaces(num_classes=2).verify().ok
    monkeypatch.setattr(module, "version", lambda package: "0.9" if package == "fontpkg-abel" else "1.3")
    assert Typefaces(num_classes=2).verify().problems == [
        "fontpkg-abel is version 0.9, not 1.3: pip install fontpkg-abel==1.3"
    ]


def test_bad_arguments() -> None:
    with pytest.raises(UserError, match="from 1 to 186"):
        Typefaces(num_classes=187)
    with pytest.raises(UserError, match="image_size 3"):
        Typefaces(image_size=3)
