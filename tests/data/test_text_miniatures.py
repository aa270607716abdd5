"""WOS-134 and 20 Newsgroups, made here in their official layouts, and a table of one's own: fit, test and predict."""

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors import safe_open
from tiny_fit import REPOSITORY
from tiny_text import own_texts, tiny_text_model

WORDS = [f"{consonant}{vowel}" for consonant in "bdgklmnp" for vowel in "ao"]  # one a class


def wos134(root: Path) -> None:
    """`WOS46985/` with an abstract a line, its area's number, its domain's, and its number within the domain."""
    folder = root / "wos134" / "WOS46985"
    folder.mkdir(parents=True)
    rows = [(f"On {word} {sample}: we study {word}.", area) for area, word in enumerate(WORDS) for sample in range(4)]
    for name, lines in {
        "X.txt": [text for text, _ in rows],
        "Y.txt": [area for _, area in rows],
        "YL1.txt": [area // 4 for _, area in rows],
        "YL2.txt": [area % 4 for _, area in rows],
    }.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines))


def news20(root: Path) -> None:
    """`20news-bydate.tar.gz` with a file a post, in Latin-1."""
    posts = root / "posts"
    for number, word in enumerate(WORDS):
        for sample in range(4):
            part = "train" if sample < 3 else "test"
            file = posts / f"20news-bydate-{part}" / f"talk.{word}" / str(1000 * number + sample)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(f"From: josé@{word}\nSubject: {word}\n\nNo {sample}.\n".encode("latin-1"))
    (root / "20newsgroups").mkdir()
    with tarfile.open(root / "20newsgroups" / "20news-bydate.tar.gz", "w:gz") as archive:
        for part in ("20news-bydate-train", "20news-bydate-test"):
            archive.add(posts / part, part)


def options(tmp_path: Path, data: str) -> list[str]:
    trunk = {
        "class_path": "levelfield.models.TransformersTrunk",
        "init_args": {"name": str(tiny_text_model(tmp_path / "tiny")), "weights": None, "max_length": 64},
    }
    return [
        "--config", str(REPOSITORY / f"configs/data/{data}.yaml"),
        "--config", str(REPOSITORY / "configs/trainer/debug.yaml"),
        "--model.trunk", str(trunk).replace("None", "null"), "--model.loss", "ContrastiveLoss",
        "--data.num_folds", "2", "--data.steps_per_epoch", "2", "--trainer.max_epochs", "1", "--data.batch_size", "8",
        "--model.embedding_size", "8", "--output", str(tmp_path / "out"), "--trainer.enable_progress_bar", "false",
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "build"), [("wos134", wos134), ("news20", news20)])
def test_two_steps_and_a_test_on_a_miniature(name: str, build: Callable[[Path], None], run, tmp_path: Path) -> None:
    build(tmp_path / "data")
    root = ("--data.root", str(tmp_path / "data"))
    code, printed, _ = run("data", "verify", name, *root)
    assert (code, printed.splitlines()[0]) == (2, f"{name}: 16 classes, 64 samples; 2 problems")  # fewer than published
    split = ("--data.split", "vasilev-dyakonov")
    code, _, complained = run("fit", *options(tmp_path, name), *root, *split)
    assert code == 0, complained
    (checkpoint,) = (tmp_path / "out").rglob("best.ckpt")
    code, printed, complained = run("test", "--ckpt_path", checkpoint, *root, "--trainer.enable_progress_bar", "false")
    assert code == 0, complained
    assert "map_at_r" in printed


def test_fit_and_predict_on_a_table_of_ones_own(run, tmp_path: Path) -> None:
    table = own_texts(tmp_path)
    given = ("--data.dataset.table", str(table))
    code, _, complained = run("fit", *options(tmp_path, "own_texts"), *given)
    assert code == 0, complained
    (checkpoint,) = (tmp_path / "out").rglob("best.ckpt")
    (tmp_path / "tiny").rename(tmp_path / "elsewhere")  # the checkpoint holds what it needs
    code, _, complained = run("predict", "--ckpt_path", checkpoint, *given, "--trainer.enable_progress_bar", "false")
    assert code == 0, complained
    with safe_open(checkpoint.parent / "embeddings.safetensors", "pt") as file:
        assert file.get_tensor("embeddings").shape == (64, 8)
        assert file.metadata()["keys"].split("\n") == [f"row {row}" for row in range(2, 66)]


def test_a_trunk_of_images_is_refused_for_texts(run, tmp_path: Path) -> None:
    table = own_texts(tmp_path)
    words = ("--data.dataset", "TextTable", "--data.dataset.table", str(table), "--data.num_folds", "2")
    code, _, complained = run("fit", *words, "--model.loss", "ContrastiveLoss", "--output", str(tmp_path / "out"))
    assert code == 2
    assert "TextTable holds texts, TimmTrunk takes images" in complained
    assert "configs/trunk/minilm.yaml" in complained
