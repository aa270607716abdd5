"""What is measured on request is the library's, of the samples that were embedded."""

from pathlib import Path

import pytest
import torch
from PIL import Image
from refused import refused

import levelfield
from levelfield.data.datasets import GroceryStore
from levelfield.metrics import hierarchical_precision_at_r


@pytest.fixture
def groceries(tmp_path: Path, monkeypatch) -> Path:
    """A Grocery Store of 16 classes, four to a coarse one."""
    folder = tmp_path / "grocery_store" / "dataset"
    folder.mkdir(parents=True)
    rows = [f"Kind-{each},{each},Coarse-{each // 4},{each // 4}" for each in range(16)]
    (folder / "classes.csv").write_text("\n".join(["Class Name (str),Class ID (int),Coarse Class Name (str)", *rows]))
    for part, samples in (("train", (0, 1)), ("val", (2,)), ("test", (3, 4))):
        lines = []
        for each in range(16):
            for sample in samples:
                path = folder / part / f"{each}_{sample}.png"
                path.parent.mkdir(exist_ok=True)
                Image.effect_noise((40, 40), 10 + 3 * each + 9 * sample).convert("RGB").save(path)
                lines.append(f"{part}/{path.name}, {each}, {each // 4}")
        (folder / f"{part}.txt").write_text("\n".join(lines))
    monkeypatch.setenv("LEVELFIELD_DATA", str(tmp_path))
    return tmp_path


def shown(printed: str) -> float:
    """HP@R of the section."""
    (line,) = [line.split() for line in printed.splitlines() if line.startswith("  HP@R")]
    return float(line[1])


def expected(checkpoint: Path, root: Path, first: int) -> float:
    index = GroceryStore(root).read_index()
    chosen = index.select(index.labels >= first)
    files = [root / "grocery_store" / "dataset" / key for key in chosen.keys]
    embedded = levelfield.embed(checkpoint, files).embeddings
    coarse = torch.from_numpy(chosen.labels) // 4
    return 100 * float(hierarchical_precision_at_r(embedded, torch.from_numpy(chosen.labels), coarse).mean())


@pytest.mark.filterwarnings("ignore:.*does not have many workers.*")
def test_coarse_classes_are_the_data_sets_own(groceries: Path, fitted: Path, tiny, tmp_path: Path, run) -> None:
    best = fitted / "best.ckpt"
    code, printed, complaint = run("score", "--ckpt_path", best, "--data", "grocery_store", "--hierarchy")
    assert code == 0, complaint
    assert "Hierarchy: 16 classes in 4 groups" in printed
    assert shown(printed) == pytest.approx(expected(best, groceries, first=0), abs=0.051)

    start = tiny.index("--data.dataset.num_classes")
    words = [*tiny[:start], *tiny[start + 2 :], "--data.dataset", "GroceryStore", "--model.loss", "ContrastiveLoss"]
    code, _, complaint = run("fit", *words, "--trainer.max_epochs", "1", "--output", tmp_path / "out")
    assert code == 0, complaint
    (best,) = tmp_path.rglob("best.ckpt")
    code, printed, complaint = run("test", "--ckpt_path", best, "--hierarchy", "--trainer.enable_progress_bar", "false")
    assert code == 0, complaint
    assert "Hierarchy: 8 classes in 2 groups" in printed
    assert shown(printed) == pytest.approx(expected(best, groceries, first=8), abs=0.051)
    assert (
        "Hierarchy: 8 classes in 2 groups.\n\n| | |\n| --- | --- |\n| HP@R | "
        in (best.parent / "README.md").read_text()
    )


def test_a_set_without_coarse_classes_is_refused_before_it_is_opened(fitted: Path, run) -> None:
    said = "--hierarchy: glyphs has no coarse classes"
    refused(run("test", "--ckpt_path", fitted / "best.ckpt", "--hierarchy"), said)
    assert not (fitted / "README.md").exists()
