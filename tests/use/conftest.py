"""Pictures in folders of classes, and a learner of texts, which is trained once."""

from pathlib import Path

import pytest
from PIL import Image
from tiny_text import own_texts

from levelfield.cli.main import main


@pytest.fixture
def best(fitted: Path) -> Path:
    return fitted / "best.ckpt"


@pytest.fixture
def birds(tmp_path: Path) -> Path:
    """Pictures in class folders, none of them square."""
    for number in range(8):
        of_class = tmp_path / "birds" / ("jay" if number < 4 else "wren")
        of_class.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((50 + number, 40), 20 + 30 * number).convert("RGB").save(of_class / f"{number}.png")
    return tmp_path / "birds"


@pytest.fixture(scope="session")
def of_texts(shared) -> Path:
    """The checkpoint of a learner of texts; the table of them is `texts.csv` in the folder of its fits."""

    def make(folder: Path) -> None:
        folder.mkdir()
        files = [f"--config=configs/{file}.yaml" for file in ("data/own_texts", "trunk/tiny_text", "trainer/debug")]
        words = ["--data.dataset.table", str(own_texts(folder)), "--trainer.enable_progress_bar", "false"]
        words += ["--model.loss", "SupConLoss", "--output", str(folder), "--name", "texts"]
        assert main(["fit", *files, *words]) == 0

    return shared("texts", make) / "fit/texts/0/best.ckpt"
