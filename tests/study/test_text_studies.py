"""The studies of texts: a table of one's own from the file to the table of scores."""

from pathlib import Path

import pytest
from tiny_fit import REPOSITORY
from tiny_text import own_texts, tiny_text_model

from levelfield.cli.study import main


@pytest.mark.slow
def test_own_texts_study_works_on_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(REPOSITORY)
    trunk = tiny_text_model(tmp_path / "tiny")
    words = [
        "run", "own_texts_finetune.yaml", "--data.dataset.table", str(own_texts(tmp_path)),
        "--output", str(tmp_path / "own"),
        "--model.trunk.name", str(trunk), "--model.trunk.weights", "null", "--model.trunk.max_length", "64",
        "--model.embedding_size", "16", "--data.steps_per_epoch", "2", "--data.batch_size", "8",
        "--folds", "2", "--runs", "1",
    ]  # fmt: skip
    assert main(words) == 0
    assert "supcon" in capsys.readouterr().out
    assert (tmp_path / "own" / "summary.csv").read_text().count("map_at_r") == 2 * 3 + 1  # the one PCA
