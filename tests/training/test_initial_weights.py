"""`fit --ckpt_path` starts a training from weights that have seen no test class; so do a trunk's weights."""

import csv
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from own_images import image_options
from PIL import Image
from refused import refused, succeeded
from tiny_fit import TINY

from levelfield.cli.main import main

STILL = ["--model.trunk_lr", "0", "--model.embedder_lr", "0", "--model.loss_lr", "0", "--model.weight_decay", "0"]


def words(loss: str = "ArcFaceLoss", *more: Any) -> list[Any]:
    small = ["--model.embedding_size", "16", "--trainer.max_epochs", "1", "--data.batch_size", "16"]
    return ["fit", *TINY, "--model.loss", loss, *small, "--name", "it", *more]


@pytest.fixture(scope="session")
def first(shared: Callable[[str, Callable[[Path], None]], Path]) -> Path:
    """The checkpoint of a fit on fold 0."""

    def fit(folder: Path) -> None:
        assert main([*words(), "--output", str(folder)]) == 0

    return shared("first", fit) / "fit/it/0/best.ckpt"


def fitted(folder: Path) -> dict[str, Any]:
    return torch.load(folder / "fit/it/0/best.ckpt", weights_only=True)


def test_a_new_training_starts_at_the_weights(first: Path, run, tmp_path: Path) -> None:
    succeeded(run(*words(), *STILL, "--ckpt_path", first, "--output", tmp_path, "--seed_everything", "3"))
    then, now = torch.load(first, weights_only=True), fitted(tmp_path)
    assert {"loss.class_weights"} < then["state_dict"].keys() == now["state_dict"].keys()
    for name, weight in then["state_dict"].items():
        if not name.endswith("num_batches_tracked"):
            assert torch.equal(weight, now["state_dict"][name]), name
    assert then["global_step"] > 0
    assert (now["epoch"], now["global_step"]) == (0, 4)
    with open(tmp_path / "fit/it/0/metrics.csv") as file:
        assert [row["epoch"] for row in csv.DictReader(file) if row["val/map_at_r"]] == ["0"]


@pytest.mark.parametrize(
    ("loss", "fold", "warns"), [("ContrastiveLoss", "0", 0), ("ArcFaceLoss", "1", 1), ("ArcFaceLoss", "none", 0)]
)
def test_the_loss_starts_as_new_where_loss_or_classes_differ(
    loss: str, fold: str, warns: int, first: Path, run, tmp_path: Path
) -> None:
    command = [*words(loss), *STILL, "--data.fold", fold, "--ckpt_path", first, "--output", tmp_path]
    how = pytest.warns(UserWarning, match=r"best\.ckpt' was trained on .* validation fold") if warns else nullcontext()
    with how:
        succeeded(run(*command))
    then, now = torch.load(first, weights_only=True)["state_dict"], fitted(tmp_path)["state_dict"]
    for name, weight in then.items():
        if name.startswith(("trunk.", "embedder.")) and not name.endswith("num_batches_tracked"):
            assert torch.equal(weight, now[name]), name
    weights = now.get("loss.class_weights")
    assert weights is None or not torch.equal(weights, then["loss.class_weights"])


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
    for folder, shade in (("one", 0), ("two", 90), ("again/one", 0)):
        for number in range(16):
            (place := tmp_path / folder / f"{number:02d}").mkdir(parents=True)
            for sample in range(4):
                Image.new("RGB", (40, 40), (number * 10, sample * 9, shade)).save(place / f"{sample}.png")

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
