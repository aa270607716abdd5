"""The Python of the page on use runs as printed."""

import re
import shutil
from pathlib import Path

import pytest
from own_images import own_images
from tiny_fit import REPOSITORY

BLOCK, _ = re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs/embed_and_search.md").read_text(), re.DOTALL)


def test_the_block_embeds_a_folder_of_classes(fitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(fitted / "best.ckpt", "best.ckpt")
    for letter in "ab":
        folder = Path("my_images", letter)
        folder.mkdir(parents=True)
        own_images(folder, classes=2, samples=2)
    scope: dict = {}
    exec(compile(BLOCK, "docs/embed_and_search.md", "exec"), scope)
    embedded = scope["embedded"]
    assert embedded.embeddings.shape[0] == 8
    assert embedded.embeddings.norm(dim=1).tolist() == pytest.approx([1.0] * 8, abs=1e-5)
    assert embedded.names[0] == "a/0_0.png"
    assert embedded.labels == ("a",) * 4 + ("b",) * 4
