"""Embeddings of any data are those of the learner and of the evaluation transform."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from refused import refused, refuses, succeeded
from safetensors import safe_open
from tiny_fit import REPOSITORY
from torchvision.transforms import v2

import levelfield
from levelfield import MetricLearner

SNIPPET, *_ = re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs/embed_and_search.md").read_text(), re.DOTALL)


def test_a_folder_is_embedded_as_by_hand_with_the_names_and_labels_of_its_folders(best, birds, monkeypatch) -> None:
    """By the lines of the page; by hand the shorter side to 32 by Pillow, the middle, [0, 1]."""
    monkeypatch.chdir(birds.parent)
    shutil.copy(best, "best.ckpt")
    birds.rename("my_images")
    exec(SNIPPET, scope := {})
    embedded = scope["embedded"]
    assert embedded.names == tuple(f"{'jay' if n < 4 else 'wren'}/{n}.png" for n in range(8))
    assert embedded.labels == ("jay",) * 4 + ("wren",) * 4
    crop = v2.Compose([v2.Resize(32), v2.CenterCrop(32), v2.PILToTensor()])
    squares = torch.stack([crop(Image.open(f"my_images/{name}")) for name in embedded.names]) / 255
    expected = MetricLearner.load_from_checkpoint("best.ckpt")(squares).detach()
    torch.testing.assert_close(embedded.embeddings, expected, atol=1e-6, rtol=0)


def test_all_forms_of_the_same_pictures_give_the_same(best, birds, tmp_path, monkeypatch) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8))
    turned = Image.Exif()
    turned[0x0112] = 6
    noise.convert("P").save(birds / "jay/3_palette.png", transparency=3)
    noise.save(birds / "wren/turned.tif", exif=turned)
    files, flat, table = sorted(birds.rglob("*.*")), tmp_path / "flat", tmp_path / "t.parquet"
    for of_class in birds.iterdir():
        shutil.copytree(of_class, flat, dirs_exist_ok=True)
    paths = [str(file.relative_to(tmp_path)) for file in files]
    (tmp_path / "table.csv").write_text("\n".join(["path", *paths]))
    pd.DataFrame({"path": map(str, files), "label": ["a", None] * 5}).to_parquet(table)
    monkeypatch.setenv("LEVELFIELD_DATA", str(tmp_path))  # where relative paths of a list are
    expected, opened = levelfield.embed(best, birds).embeddings, [Image.open(file) for file in files]
    for data in (flat, tmp_path / "table.csv", table, files, paths, opened, opened):  # which stay as they are
        embedded = levelfield.embed(str(best), data)
        assert torch.equal(embedded.embeddings, expected)
        assert embedded.labels == (("a", "") * 5 if data == table else None)
    for one in (files[0], Path(paths[0])):
        torch.testing.assert_close(levelfield.embed(best, one).embeddings, expected[:1], atol=1e-6, rtol=0)
    shutil.copy(files[0], birds)
    assert levelfield.embed(best, birds).labels is None, "beside folders of classes"


def test_the_command_writes_what_the_function_gives(best: Path, birds: Path, tmp_path: Path, run) -> None:
    output = tmp_path / "birds.safetensors"
    printed = succeeded(run("predict", "--ckpt_path", best, "--data", birds, "--output", output))
    expected = levelfield.embed(best, birds)
    assert f"8 embeddings of {expected.embeddings.shape[1]} numbers, 2 labels: {output}" in printed
    with safe_open(output, framework="pt") as file:
        assert torch.equal(file.get_tensor("embeddings"), expected.embeddings)
        names, labels = (tuple(json.loads(file.metadata()[name])) for name in ("names", "labels"))
    assert (names, labels) == (expected.names, expected.labels)
    data = tmp_path / "some.csv"
    data.write_text("path,label\nbirds/jay/0.png,01\nbirds/wren/4.png,\nbirds/wren/4.png,1.0\n")
    succeeded(run("predict", "--ckpt_path", best, "--data", data, "--output", tmp_path / "e.parquet"))
    table, expected = pd.read_parquet(tmp_path / "e.parquet"), levelfield.embed(best, data)
    assert (*table["label"].fillna(""),) == expected.labels == ("01", "", "1.0")
    assert (*table["name"],) == expected.names
    assert np.array_equal(np.stack(table["embedding"]), expected.embeddings)


def test_broken_pictures_are_named_and_left_out_only_when_told(best, birds, run) -> None:
    whole = (birds / "jay" / "1.png").read_bytes()
    (birds / "jay" / "1.png").write_bytes(whole[: len(whole) // 2])
    (birds / "wren" / "note.txt").write_text("two wrens")
    asked = ("predict", "--ckpt_path", best, "--data", birds)
    refused(run(*asked), "jay/1.png", "not a complete", "--skip-broken")
    printed = succeeded(run(*asked, "--skip-broken"))
    assert "1 of 8 images are left out" in printed
    table = pd.read_parquet(best.parent / "embeddings_birds.parquet")
    names = [f"jay/{n}.png" for n in (0, 2, 3)] + [f"wren/{n}.png" for n in (4, 5, 6, 7)]
    assert table["name"].tolist() == names
    expected = levelfield.embed(best, [birds / name for name in names]).embeddings
    np.testing.assert_allclose(np.stack(table["embedding"]), expected, atol=1e-6)
    rows = [f"{birds / name},bird" for name in ("jay/0.png", "wren/9.png", "wren/4.png")]
    (birds / "some.csv").write_text("\n".join(["path,label", *rows]))
    found = succeeded(run("predict", "--ckpt_path", best, "--data", birds / "some.csv", "--skip-broken"))
    assert ("1 of 3 images are left out" in found, "2 embeddings" in found) == (True, True)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("red shoe\u2028size 42\nblue\x85shoe\v1\f2\x1c3\n", ["red shoe\u2028size 42", "blue\x85shoe\v1\f2\x1c3"]),
        ("\ufeffshoe\r\n hat \r\nshoe\r\n", ["shoe", "hat", "shoe"]),
        ("shoe\nhat\n\n \n", ["shoe", "hat"]),
        ("shoe\n\nhat\n", "row 2: text is empty"),
        ("shoe\nh\0at\n", "row 2: text has a NUL byte"),
        (b"shoe\nh\xe9at\n", "row 2: text is not UTF-8"),
        ("\n", "row 1: text is empty"),
    ],
)
def test_row_i_is_line_i_of_a_text_file(content, expected, of_texts, tmp_path) -> None:
    (tmp_path / "t.txt").write_bytes(content if isinstance(content, bytes) else content.encode())
    if isinstance(expected, str):
        texts = (content if isinstance(content, str) else content.decode(errors="surrogateescape")).split("\n")
        for data, named in ((tmp_path / "t.txt", expected), (texts[:2], expected.partition(":")[2])):
            refuses(named, levelfield.embed, of_texts, data)
    else:
        found, embedded = levelfield.embed(of_texts, tmp_path / "t.txt"), levelfield.embed(of_texts, expected)
        assert found.names == embedded.names == tuple(expected)
        by_learner = MetricLearner.load_from_checkpoint(of_texts)(expected).detach()
        torch.testing.assert_close(embedded.embeddings, by_learner, atol=1e-6, rtol=0)


def test_what_is_no_sample_is_named(best: Path, of_texts: Path, birds: Path, tmp_path: Path) -> None:
    """tests/cli/test_refusals.py has the mistakes in the words of a command."""
    Image.new("F", (9, 9)).save(tmp_path / "float.tif")
    refuses(r"float\.tif .*floating point", levelfield.embed, best, [Image.open(tmp_path / "float.tif")])
    refuses("sample 1 of the list is a int", levelfield.embed, best, ["a.png", 1])
    refuses("takes texts, .* images", levelfield.embed, of_texts, birds)
