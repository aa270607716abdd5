"""Each large image data set, made here in its official layout, is verified and trained on for two steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from miniatures import MINIATURES
from tiny_fit import TINY

from levelfield.cli.data import named_datasets

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize("name", MINIATURES)
def test_two_steps_on_a_miniature(name: str, run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    MINIATURES[name](tmp_path / "data")
    kind = named_datasets()[name]
    monkeypatch.setattr(kind, "num_classes_published", 16)
    monkeypatch.setattr(kind, "num_samples_published", 64)
    root = ("--data.root", str(tmp_path / "data"))
    code, printed, _ = run("data", "verify", name, *root)
    assert (code, printed) == (0, f"{name}: 16 classes, 64 samples; as published, every sample opens\n")

    start = TINY.index("--data.dataset.num_classes")
    tiny = [*TINY[2:start], *TINY[start + 2 :]]
    code, printed, complained = run(
        "fit", "--config", str(REPOSITORY / f"configs/data/{name}.yaml"), *tiny, *root,
        "--model.loss", "ContrastiveLoss", "--data.num_folds", "2", "--data.steps_per_epoch", "2",
        "--trainer.max_epochs", "1", "--data.batch_size", "8", "--output", str(tmp_path / "out"),
    )  # fmt: skip
    assert code == 0, complained
    (checkpoint,) = tmp_path.rglob("best.ckpt")
    if name != "inshop":
        return
    # Its queries are searched for in its gallery.
    code, printed, complained = run(
        "test", "--ckpt_path", str(checkpoint), *root, "--trainer.enable_progress_bar", "false"
    )
    assert code == 0, complained
    assert "map_at_r" in printed
