"""`examples/train.py` and each example of a technique train for some seconds and end above where they began."""

import csv
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from refused import succeeded
from tiny_fit import REPOSITORY
from wandb_files import offline_runs

EXAMPLES = REPOSITORY / "examples"
MOST_LINES = {"train": 60, "wandb_neighbours": 100}
LOSS = ["--model.loss", "MultiSimilarityLoss"]
TRUNK = ["--config", "trunk/tiny.yaml", "--model.freeze_batch_norm", "false", "--model.trunk_lr", "1e-2"]
AUGMENTATION = ["--data.transforms", "own_augmentation.Rotated", "--data.transforms.size", "32"]
WORDS = {
    "mixup": [*TRUNK, *LOSS, "--model", "mixup.Mixup"],
    "two_losses": [*TRUNK, "--model", "two_losses.TwoLosses", "--model.loss", "ContrastiveLoss"],
    "teacher": [*TRUNK, *LOSS, "--model", "teacher.Teacher"],
    "own_trunk": [*LOSS, "--model.trunk", "own_trunk.SmallTrunk", "--model.trunk_lr", "1e-3"],
    "own_augmentation": [*TRUNK, *LOSS, *AUGMENTATION],
    "plain_module": ["--model", "plain_module.Plain", "--model.width", "16"],
}
# The callbacks, with the argument that their command gives.
CALLBACKS = {"compile_trunk": ("mode", "default"), "wandb_neighbours": ("queries", 20)}
FIT = [
    *("--config", "data/glyphs.yaml", "--data.dataset.num_classes", "80", "--data.steps_per_epoch", "120"),
    *("--trainer.max_epochs", "1", "--trainer.enable_progress_bar", "false"),
    *("--trainer.callbacks+", "levelfield.training.callbacks.ValidateFirst"),
]


def test_every_example_is_here_and_short() -> None:
    files = {file.stem: file.read_text().count("\n") for file in EXAMPLES.glob("*.py")}
    assert set(files) == {*WORDS, *CALLBACKS, "train", "my_loss"}
    assert [name for name, lines in files.items() if lines > MOST_LINES.get(name, 40)] == []


@pytest.mark.parametrize("name", [*WORDS, *CALLBACKS])
def test_the_options_of_its_command_arrive(name, run, monkeypatch):
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    source = (EXAMPLES / f"{name}.py").read_text().replace("\\\n", "")
    words = shlex.split(re.search(r"^levelfield (fit .*)$", source, re.M)[1])
    config = yaml.safe_load(succeeded(run(*words, "--print_config")))
    if name in CALLBACKS:
        (argument, value), (config,) = CALLBACKS[name], config["trainer"]["callbacks"]
        assert (config["class_path"].partition(".")[0], config["init_args"][argument]) == (name, value)
        return
    part, argument, value = {
        "mixup": ("model", "alpha", 0.4),
        "two_losses": ("model", "share", 0.5),
        "teacher": ("model", "weight", 0.1),
        "own_trunk": ("model.trunk", "width", 32),
        "own_augmentation": ("data.transforms", "degrees", 20),
        "plain_module": ("model", "width", 32),
    }[name]
    for key in part.split("."):
        config = config[key]
    assert {**config, **config.get("init_args", {})}[argument] == value


@pytest.mark.full
@pytest.mark.parametrize("name", WORDS)
def test_it_ends_above_the_untrained_score(name, run, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    size = [] if name == "own_augmentation" else ["--data.transforms.crop_size", "32", "--data.transforms.resize", "32"]
    succeeded(run("fit", *FIT, *size, *WORDS[name], "--name", name, "--output", tmp_path))
    with open(tmp_path / "fit" / name / "0" / "metrics.csv") as file:
        scores = [float(row["val/map_at_r"]) for row in csv.DictReader(file) if row["val/map_at_r"]]
    assert len(scores) == 2
    assert scores[1] > scores[0] + 0.05


def before_and_after(printed: str) -> tuple[float, ...]:
    ((before, after),) = re.findall(r"before training: (\S+), after: (\S+)", printed)
    return float(before), float(after)


@pytest.mark.slow
def test_a_few_steps_of_train_beat_the_untrained_trunk(tmp_path: Path, monkeypatch, capsys, quiet) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PL_TRAINER_LIMIT_TRAIN_BATCHES", "10")
    monkeypatch.setenv("PL_TRAINER_ENABLE_PROGRESS_BAR", "False")
    monkeypatch.setattr(sys, "argv", ["train.py", "--epochs", "1"])
    runpy.run_path(str(EXAMPLES / "train.py"), run_name="__main__")
    before, after = before_and_after(capsys.readouterr().out)
    assert after > 1.2 * before


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.parametrize("devices", [1, 2])
def test_train_scores_twice_the_untrained_trunk_and_logs(devices: int, tmp_path: Path) -> None:
    words = [sys.executable, EXAMPLES / "train.py", "--epochs", "1", "--size", "32", "--devices", devices, "--wandb"]
    # An earlier test's W&B names its own process there.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("WANDB")}
    environment |= {"WANDB_MODE": "offline", "CUDA_VISIBLE_DEVICES": ""}
    words = [str(word) for word in words]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    before, after = before_and_after(done.stdout)
    assert after > 2 * before
    (logged,) = offline_runs(tmp_path / "outputs/train/wandb")
    assert [*logged.series("val/map_at_r").values()] == pytest.approx([before, after], abs=1e-4)
