"""Each example of a technique trains for some seconds and ends above where it began."""

import csv

import pytest
from tiny_fit import REPOSITORY

EXAMPLES = REPOSITORY / "examples"
MOST_LINES = 40
LOSS = ["--model.loss", "MultiSimilarityLoss"]
TRUNK = ["--config", "trunk/tiny.yaml", "--model.freeze_batch_norm", "false", "--model.trunk_lr", "1e-2"]
WORDS = {
    "mixup": [*TRUNK, *LOSS, "--model", "mixup.Mixup"],
    "two_losses": [*TRUNK, "--model", "two_losses.TwoLosses", "--model.loss", "ContrastiveLoss"],
    "teacher": [*TRUNK, *LOSS, "--model", "teacher.Teacher"],
    "own_trunk": [*LOSS, "--model.trunk", "own_trunk.SmallTrunk", "--model.trunk_lr", "1e-3"],
    "own_augmentation": [
        *TRUNK,
        *LOSS,
        "--data.transforms",
        "own_augmentation.Rotated",
        "--data.transforms.size",
        "32",
    ],
    "plain_module": ["--model", "plain_module.Plain", "--model.width", "16"],
}
FIT = [
    *("--config", "data/glyphs.yaml", "--data.dataset.num_classes", "80", "--data.steps_per_epoch", "120"),
    *("--trainer.max_epochs", "1", "--trainer.enable_progress_bar", "false"),
    *("--trainer.callbacks+", "levelfield.training.callbacks.ValidateFirst"),
]


def test_every_example_is_here_and_short():
    files = [file for file in EXAMPLES.glob("*.py") if file.stem not in ("train", "my_loss")]
    assert {file.stem for file in files} == set(WORDS)
    assert [file.stem for file in files if file.read_text().count("\n") > MOST_LINES] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", WORDS)
def test_it_ends_above_the_untrained_score(name, run, tmp_path, monkeypatch):
    monkeypatch.chdir(EXAMPLES)
    size = [] if name == "own_augmentation" else ["--data.transforms.crop_size", "32", "--data.transforms.resize", "32"]
    code, _, complaint = run("fit", *FIT, *size, *WORDS[name], "--name", name, "--output", tmp_path)
    assert code == 0, complaint
    with open(tmp_path / "fit" / name / "0" / "metrics.csv") as file:
        scores = [float(row["val/map_at_r"]) for row in csv.DictReader(file) if row["val/map_at_r"]]
    assert len(scores) == 2
    assert scores[1] > scores[0] + 0.05
