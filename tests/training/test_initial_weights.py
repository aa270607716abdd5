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
from levelfield.training.initial_weights import check_weight_files

Run = Callable[..., tuple[int, str, str]]
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


def test_a_new_training_starts_at_the_weights(first: Path, run: Run, tmp_path: Path) -> None:
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
    loss: str, fold: str, warns: int, first: Path, run: Run, tmp_path: Path
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


OTHER = {
    "--model.embedding_size 32": "--model.embedding_size 32",
    "--model.embedder MLPEmbedder": "--model.embedder",
    "--data.split random --data.split_seed 4": "test classes",
}


@pytest.mark.parametrize(("more", "key"), OTHER.items())
def test_other_weights_are_refused(more: str, key: str, first: Path, run: Run, tmp_path: Path) -> None:
    refused(run(*words(), "--ckpt_path", first, "--output", tmp_path, *more.split()), key)
    assert not list(tmp_path.glob("fit/it/*"))


def test_a_checkpoint_of_other_data_is_refused(first: Path, run: Run, tmp_path: Path) -> None:
    checkpoint = torch.load(first, weights_only=True)
    command = [*words(), "--ckpt_path", tmp_path / "other.ckpt", "--output", tmp_path]
    checkpoint["datamodule_hyper_parameters"]["dataset"]["class_path"] = "levelfield.data.datasets.Omniglot"
    torch.save(checkpoint, tmp_path / "other.ckpt")
    refused(run(*command), "other.ckpt", "--data.dataset")
    del checkpoint["datamodule_hyper_parameters"]  # as after a fit with loaders of your own
    torch.save(checkpoint, tmp_path / "other.ckpt")
    refused(run(*command), "other.ckpt", "load_from_checkpoint")


@pytest.mark.slow
def test_another_folder_with_classes_of_the_same_names_is_warned_of(run: Run, tmp_path: Path) -> None:
    for folder, shade in (("one", 0), ("two", 90), ("again/one", 0)):
        for number in range(16):
            (place := tmp_path / folder / f"{number:02d}").mkdir(parents=True)
            for sample in range(4):
                Image.new("RGB", (40, 40), (number * 10, sample * 9, shade)).save(place / f"{sample}.png")

    def command(name: str, *more: Any) -> list[Any]:
        short = ["--model.loss", "ArcFaceLoss", "--trainer.max_epochs", "1", "--data.steps_per_epoch", "1"]
        return ["fit", *image_options(TINY, tmp_path, tmp_path / name), *short, *STILL, *more]

    succeeded(run(*command("one"), "--name", "it", "--output", tmp_path))
    best, split = tmp_path / "fit/it/0/best.ckpt", ["--data.split", "random", "--data.split_seed", "1"]
    for option in ("--ckpt_path", "--model.trunk.weights"):
        with pytest.warns(UserWarning, match=r"best\.ckpt' .*unless") as warned:
            succeeded(run(*command("two", *split), option, best, "--output", tmp_path / option))
        assert "test classes" in str(warned[0].message)
    refused(run(*command("again/one", *split), "--ckpt_path", best, "--output", tmp_path), "test classes")
    for name, same in (("one", True), ("two", False)):
        more = ["--seed_everything", "3", "--name", "it", "--output", tmp_path / name]
        succeeded(run(*command(name), "--ckpt_path", best, *more))
        then, now = torch.load(best, weights_only=True)["state_dict"], fitted(tmp_path / name)["state_dict"]
        assert torch.equal(then["loss.class_weights"], now["loss.class_weights"]) == same, name


def test_a_pickled_module_is_no_weights(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(2, 2), tmp_path / "whole.pt")
    check_weight_files({"trunk": {"init_args": {"weights": str(tmp_path / "whole.pt")}}}, None)


def test_trunk_weights_of_a_checkpoint_are_looked_at_too(first: Path, run: Run, tmp_path: Path) -> None:
    command = [*words(), "--model.trunk.weights", first, "--output", tmp_path]
    assert run(*command)[0] == 0
    with pytest.warns(UserWarning, match=r"best\.ckpt' was trained on .* validation fold"):
        assert run(*command, "--data.fold", "1")[0] == 0
    refused(run(*command, "--data.split", "random", "--data.split_seed", "4"), "test classes")
