"""A LightningModule written from the documentation of Lightning, without levelfield: every command takes it."""

import csv
import json
from pathlib import Path

import pytest
import torch
import yaml
from lightning.pytorch import seed_everything
from refused import refused, succeeded
from safetensors.torch import load_file
from tiny_fit import REPOSITORY

from levelfield.data.datamodule import MetricDataModule
from levelfield.data.datasets import Glyphs
from levelfield.data.transforms import ImageTransforms, as_floats, stacked
from levelfield.metrics import retrieval_metrics

MODULE = (
    (REPOSITORY / "examples/plain_module.py").read_text()
    + """

class Both(Plain):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("my_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        embeddings = super().validation_step(batch, batch_idx)
        self.log("seen", float(len(embeddings)))
        return {"embeddings": embeddings, "more": 1}


class Splitting(Plain):
    def compute_loss(self, batch):
        return super().training_step(batch, 0)

    def training_step(self, batch, batch_idx):
        return self.compute_loss(batch)


class Silent(Plain):
    def validation_step(self, batch, batch_idx):
        self.log("val_loss", 0.0)
"""
)
FIT = ["--config", "data/glyphs.yaml", "--data.dataset.num_classes", "24", "--data.steps_per_epoch", "6"]
FIT += ["--trainer.max_epochs", "2", "--data.transforms.crop_size", "32", "--data.transforms.resize", "32"]
FIT += ["--trainer.enable_progress_bar", "false"]
STUDY = """
folds: 2
runs: 1
threads: 1
base:
  - data/glyphs.yaml
  - trunk/tiny.yaml
  - data: {dataset: {num_classes: 40}, transforms: {crop_size: 32, resize: 32}, steps_per_epoch: 30}
    trainer: {max_epochs: 1, accelerator: cpu}
    model: {loss: ContrastiveLoss}
methods:
  wide: {model: {learner: plainly.Plain, width: 24}}
  usual: {}
"""


@pytest.fixture(autouse=True)
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plainly.py").write_text(MODULE)


def test_it_is_fitted_validated_tested_and_predicts(run, tmp_path):
    printed = succeeded(run("fit", *FIT, "--model", "plainly.Both", "--model.width", "12"))
    assert "--trust plainly" in printed
    folder = tmp_path / "outputs/fit/Glyphs-Both/0"
    rows = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
    assert [row for row in rows if row["my_loss"]]
    best = max(float(row["val/map_at_r"]) for row in rows if row["val/map_at_r"])
    checkpoint = ["--ckpt_path", str(folder / "best.ckpt"), "--trust", "plainly"]
    assert f"{best:.6f}"[:6] in succeeded(run("validate", *checkpoint))
    succeeded(run("predict", *checkpoint))
    assert load_file(folder / "embeddings.safetensors")["embeddings"].shape == (24 * 16, 64)
    assert "test/map_at_r" in succeeded(run("test", *checkpoint))
    module = torch.load(folder / "best.ckpt", weights_only=True)["hyper_parameters"]
    assert module == {"learner": "plainly.Both", "width": 12, "lr": 3e-3}


MISTAKES = [
    ("Plain --model.widht 3", "--model.widht", "'--model.width'"),
    ("Plian", "plainly", "'Plain'"),
    ("Plain --data.features true", "--data.features"),
    ("Silent", "validation_step", "NoneType"),
    ("Plain --trainer.callbacks+ HeadFirst", "--trainer.callbacks HeadFirst", "Plain"),
    ("Plain --trainer.callbacks+ GradientCaching --trainer.callbacks.chunk_size 4", "GradientCaching", "Plain"),
]


@pytest.mark.parametrize(("words", "keys"), [(words, keys) for words, *keys in MISTAKES])
def test_a_mistake_is_one_line(words, keys, run):
    refused(run("fit", *FIT, "--model", "pathlib.Path"), "--model pathlib.Path", "LightningModule")
    refused(run("fit", *FIT, *f"--model plainly.{words}".split()), *keys)


def test_it_starts_from_a_checkpoint(run, tmp_path):
    short = ["--trainer.max_epochs", "1", "--data.steps_per_epoch", "2"]

    def fitted(*words, name):
        succeeded(run("fit", *FIT, *short, "--name", name, *words))
        return tmp_path / "outputs/fit" / name / "0/best.ckpt"

    first = fitted("--model", "plainly.Plain", name="first")
    usual = fitted("--config", "trunk/tiny.yaml", "--model.loss", "ContrastiveLoss", name="usual")
    expected = torch.load(first, weights_only=True)["state_dict"]
    still = ["--model", "plainly.Both", "--model.lr", "0", "--seed_everything", "3"]
    found = torch.load(fitted(*still, "--ckpt_path", first, name="still"), weights_only=True)["state_dict"]
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    for checkpoint, *more in ((first, "--model.width", "8"), (usual,)):
        refused(run("fit", *FIT, "--model", "plainly.Plain", "--ckpt_path", checkpoint, *more), checkpoint.name)


def test_a_tracker_replaces_none_of_its_methods_and_lightnings_tuners_restore_their_own_checkpoint(run):
    more = ["--trainer.callbacks+", "LearningRateFinder", "--trainer.callbacks.num_training_steps", "12"]
    succeeded(run("fit", *FIT, "--model", "plainly.Splitting", "--config", "logger/tensorboard", *more))


@pytest.mark.full
def test_in_a_study_it_is_compared_with_itself_before_training(run, tmp_path):
    (tmp_path / "mine.yaml").write_text(STUDY)
    printed = succeeded(run("study", "run", "mine.yaml", "--output", "mine", "--executor.workers", "1"))
    assert "untrained [wide]" in printed
    rows = csv.DictReader(Path("mine/summary.csv").read_text().splitlines())
    map_at_r = [row for row in rows if (row["metric"], row["embedding"]) == ("map_at_r", "separated")]
    means = {row["method"]: float(row["mean"]) for row in map_at_r}
    assert means.keys() == {"pretrained", "pretrained[untrained-wide]", "wide", "usual"}
    assert means["wide"] > means["pretrained[untrained-wide]"]
    # Its validation before training, by hand.
    found = json.loads(Path("mine/jobs/pretrained=untrained-wide/run0/fold1/result.json").read_text())
    config = yaml.safe_load(Path("mine/jobs/wide/run0/fold1/config.yaml").read_text())
    seed_everything(config["seed_everything"])
    from plainly import Plain

    module = Plain(width=24).eval()
    transforms = ImageTransforms(crop_size=32, resize=32)
    data = MetricDataModule(Glyphs(num_classes=40), fold=1, num_folds=2, transforms=transforms)
    data.setup("validate")
    images, labels, _ = zip(*(data.val_subset[position] for position in range(len(data.val_subset))), strict=True)
    with torch.no_grad():
        embeddings = module.validation_step((as_floats(stacked(images)), None, None), 0)
    expected = retrieval_metrics(embeddings, torch.tensor(labels))["map_at_r"]
    assert found["validation"]["map_at_r"] == pytest.approx(expected, abs=1e-6)
    succeeded(run("study", "run", "mine.yaml", "--output", "mine"))
