"""What a study reads: each test image once, and rows of its file that mean something."""

import re
from collections import Counter
from pathlib import Path

import pytest
from own_images import noise_images
from PIL import Image
from study_engine import SMALL
from toy_study import run_study

from levelfield.data import ImageTable
from levelfield.errors import UserError
from levelfield.study.rows import load_spec, with_options
from levelfield.study.spec import StudySpec

STUDY = """
base:
  - model:
      trunk: {class_path: levelfield.models.TimmTrunk, init_args: {name: test_resnet, weights: null}}
      embedding_size: 8
    data:
      dataset: {class_path: ImageTable}
      transforms: {crop_size: 24, resize: 28}
      steps_per_epoch: 2
      batch_size: 8
      samples_per_class: 2
    trainer: {max_epochs: 1, accelerator: cpu, log_every_n_steps: 1}
methods:
  contrastive: {model: {loss: ContrastiveLoss}}
folds: 2
runs: 1
threads: 1
"""


def pictures(folder: Path) -> Path:
    return noise_images(folder, 32, samples=2, height=80, width=90, suffix=".jpg")


@pytest.mark.slow
def test_the_test_pictures_are_decoded_once_for_the_baseline_and_all_runs(tmp_path: Path, monkeypatch) -> None:
    """The cache decodes each once, after a look at some for the room that they take; what is scored reads the cache."""
    monkeypatch.setenv("LEVELFIELD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("levelfield.data.cache.LOOKED_AT", 1)
    (tmp_path / "study.yaml").write_text(STUDY.replace("runs: 1", "runs: 2"))
    opened: Counter[str] = Counter()
    load = ImageTable.load

    def counting(self: ImageTable, key: str) -> Image.Image:
        opened[key] += 1
        return load(self, key)

    monkeypatch.setattr(ImageTable, "load", counting)
    run_study(tmp_path / "study", load_spec(tmp_path / "study.yaml", {"data.dataset.table": str(pictures(tmp_path))}))
    assert len(opened) == 32
    assert sorted(opened.values()) == [1] * 30 + [2] * 2


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("derived: {1: {of: mine, alpha: 0.5}}", "method name 1: use letters"),
        ("derived: {_avg: {of: mine, alpha: 0.5}}", "method name '_avg': use letters"),
        ("derived: {pretrained: {of: mine, alpha: 0.5}}", "another row has this name"),
        ("second_searches: [mine]", "second_searches.mine: nothing is searched; give --search.trials"),
    ],
)
def test_a_row_that_means_nothing_is_one_line(tmp_path: Path, more: str, words: str) -> None:
    (tmp_path / "study.yaml").write_text(f"{SMALL}{more}\n")
    with pytest.raises(UserError, match=re.escape(words)):
        load_spec(tmp_path / "study.yaml")


def test_a_count_of_a_begun_study_names_its_option(spec: StudySpec) -> None:
    with pytest.raises(UserError, match=r"^--runs must be"):
        with_options(spec, {"runs": 0})
