"""`fit --ckpt_path` starts a training from weights that have seen no test class; so do a trunk's weights."""

import csv
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from own_images import image_options
from PIL import Image
from refused import refused, succeeded
from tiny_fit import TINY

STILL = ["--model.trunk_lr", "0", "--model.embedder_lr", "0", "--model.loss_lr", "0", "--model.weight_decay", "0"]


def words(loss: str = "ArcFaceLoss", *more: Any) -> list[Any]:
    small = ["--trainer.max_epochs", "1", "--data.batch_size", "16", "--data.fold", "2"]
    return ["fit", *TINY, "--model.loss", loss, *small, "--name", "it", *more]


@pytest.fixture
def first(fitted: Path) -> Path:
    """The checkpoint of a fit with ArcFace on fold 2."""
    return fitted / "best.ckpt"


SAME = ("ArcFaceLoss", "2", 0)
STARTS = [SAME, ("ContrastiveLoss", "2", 0), ("ArcFaceLoss", "1", 1), ("ArcFaceLoss", "none", 0)]


@pytest.mark.parametrize(("loss", "fold", "warns"), STARTS)
def test_a_new_training_starts_at_the_weights(loss: str, fold: str, warns: int, first: Path, run, tmp_path) -> None:
    """And its loss as new where loss or classes differ."""
    command = [*words(loss), *STILL, "--data.fold", fold, "--ckpt_path", first, "--seed_everything", "3"]
    how = pytest.warns(UserWarning, match=r"best\.ckpt' was trained on .* validation fold") if warns else nullcontext()
    with how:
        succeeded(run(*command, "--output", tmp_path))
    then, now = (torch.load(path, weights_only=True) for path in (first, tmp_path / "fit/it/0/best.ckpt"))
    assert (now["epoch"], now["global_step"]) == (0, 4)
    loaded = "" if (loss, fold, warns) == SAME else ("trunk.", "embedder.")
    for name, weight in then["state_dict"].items():
        if name.startswith(loaded) and not name.endswith("num_batches_tracked"):
            assert torch.equal(weight, now["state_dict"][name]), name
    weights, before = (each["state_dict"].get("loss.class_weights") for each in (now, then))
    assert not loaded or weights is None or not torch.equal(weights, before)
    with open(tmp_path / "fit/it/0/metrics.csv") as file:
        rows = [row["epoch"] for row in csv.DictReader(file) if row.get("val/map_at_r")]
    assert rows == (["0"] if fold != "none" else [])


RANDOM_SPLIT = ("--data.split", "random", "--data.split_seed", "4")
OTHER = {("--model.embedding_size", "32"): "--model.embedding_size 32", RANDOM_SPLIT: "test classes"}
OTHER |= {("--model.embedder", "MLPEmbedder"): "--model.embedder"}


def test_a_checkpoint_of_other_weights_or_data_is_refused(first: Path, run, tmp_path: Path) -> None:
    for more in OTHER:
        refused(run(*words(), "--ckpt_path", first, "--output", tmp_path, *more), OTHER[more])
        assert not list(tmp_path.glob("fit/it/*"))
    checkpoint, other = torch.load(first, weights_only=True), tmp_path / "other.ckpt"
    checkpoint["datamodule_hyper_parameters"]["dataset"]["class_path"] = "levelfield.data.datasets.Omniglot"
    torch.save(checkpoint, other)
    refused(run(*words(), "--ckpt_path", other, "--output", tmp_path), "other.ckpt", "--data.dataset")
    del checkpoint["datamodule_hyper_parameters"]  # as after a fit with loaders of your own
    torch.save(checkpoint, other)
    refused(run(*words(), "--ckpt_path", other, "--output", tmp_path), "other.ckpt", "load_from_checkpoint")


@pytest.mark.slow
def test_another_folder_with_classes_of_the_same_names_is_warned_of(run, tmp_path: Path) -> None:
    for folder, sample, number in product(("one", "two", "again/one"), range(4), range(16)):
        (place := tmp_path / folder / f"{number:02d}").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 40), (number * 10, sample * 9, 90 * (folder == "two"))).save(place / f"{sample}.png")

    def command(name: str, *more: Any) -> list[Any]:
        short = ["--model.loss", "ArcFaceLoss", "--trainer.max_epochs", "1", "--data.steps_per_epoch", "1"]
        return ["fit", *image_options(TINY, tmp_path, tmp_path / name), *short, *more]

    succeeded(run(*command("one"), "--name", "it", "--output", tmp_path))
    best, split = tmp_path / "fit/it/0/best.ckpt", ["--data.split", "random", "--data.split_seed", "1"]
    for option in ("--ckpt_path", "--model.trunk.weights"):
        with pytest.warns(UserWarning, match=r"best\.ckpt' .*unless") as warned:
            succeeded(run(*command("two", *split), option, best, "--output", tmp_path / option))
        assert "test classes" in str(warned[0].message)
    refused(run(*command("again/one", *split), "--ckpt_path", best, "--output", tmp_path), "test classes")


def test_trunk_weights_of_a_checkpoint_are_looked_at_too(first: Path, run, tmp_path: Path) -> None:
    command = [*words(), "--model.trunk.weights", first, "--output", tmp_path]
    assert run(*command)[0] == 0
    with pytest.warns(UserWarning, match=r"best\.ckpt' was trained on .* validation fold"):
        assert run(*command, "--data.fold", "1")[0] == 0
    refused(run(*command, *RANDOM_SPLIT), "test classes")
