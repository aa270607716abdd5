"""What a loss of the user's says beside its number: class attributes and terms for the log."""

import csv
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml
from own_images import noise_images
from refused import refused, succeeded
from small_fit import small_trainer, small_trunk
from torch import nn

from levelfield.core.errors import UserError
from levelfield.data.datamodule import MetricDataModule
from levelfield.data.datasets import ImageTable
from levelfield.data.transforms import ImageTransforms
from levelfield.losses import ContrastiveLoss, WeightedSum
from levelfield.training.learner import MetricLearner

pytestmark = [pytest.mark.usefixtures("quiet"), pytest.mark.filterwarnings("ignore:You defined a `validation_step`")]

LOSS = """
import torch
from torch import nn

from levelfield.losses import ContrastiveLoss


class RawPairs(ContrastiveLoss):
    normalize, samples_per_class, loss_lr = False, 2, 0.25


class PullPush(nn.Module):
    normalize, samples_per_class, loss_lr = False, 2, 0.25

    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(2.0))

    def forward(self, embeddings, labels):
        same = labels[:, None] == labels[None]
        apart = torch.cdist(embeddings, embeddings) / self.temperature
        pull, push = apart[same].mean(), (1 - apart[~same]).clamp(min=0).mean()
        self.terms = {"pull": pull.detach(), "push": push.detach(), "matrix": apart.detach()}
        return pull + push
"""


def fitted(run, tiny, tmp_path: Path, name: str, *words: str) -> tuple[dict, list[dict[str, str]]]:
    """The configuration and the rows of a fit of three steps."""
    (tmp_path / "pull_push.py").write_text(LOSS)
    steps = "--data.steps_per_epoch 3 --trainer.max_epochs 1 --trainer.log_every_n_steps 1"
    loss = ["--model.loss", "pull_push.PullPush", "--name", name, "--output", tmp_path]
    succeeded(run("fit", *tiny, *loss, *steps.split(), *words))
    *_, folder = sorted((tmp_path / "fit" / name).iterdir())
    with open(folder / "metrics.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["train/loss"]]
    return yaml.safe_load((folder / "config.yaml").read_text()), rows


@pytest.mark.slow
def test_class_attributes_are_settings_that_an_option_overrides(run, tiny, tmp_path, monkeypatch):
    def settings(config: dict) -> tuple:
        return config["model"]["normalize"], config["model"]["loss_lr"], config["data"]["samples_per_class"]

    monkeypatch.chdir(tmp_path)
    config, rows = fitted(run, tiny, tmp_path, "attributes")
    assert settings(config) == (False, 0.25, 2)
    # AdamW's first steps move a weight by its learning rate each.
    assert abs(float(rows[0]["train/temperature"]) - 2.0) == pytest.approx(0.25, rel=1e-3)
    for row in rows:
        assert float(row["train/loss"]) == pytest.approx(float(row["train/pull"]) + float(row["train/push"]), rel=1e-6)
    assert "train/matrix" not in rows[0]
    words = ["--model.normalize", "true", "--model.loss_lr", "0.1", "--data.samples_per_class", "4"]
    with pytest.warns(UserWarning, match=r"--model\.normalize true: PullPush"):
        config, rows = fitted(run, tiny, tmp_path, "options", *words)
    assert settings(config) == (True, 0.1, 4)
    assert abs(float(rows[0]["train/temperature"]) - 2.0) == pytest.approx(0.1, rel=1e-3)
    losses = ["--model.loss", "WeightedSum", "--model.loss.losses"]
    memory = ["--model.loss", "CrossBatchMemory", "--model.loss.loss", "pull_push.RawPairs"]
    for words in ([*losses, "{a: pull_push.PullPush, b: pull_push.PullPush}"], memory):
        assert settings(fitted(run, tiny, tmp_path, "held", *words)[0]) == (False, 0.25, 2)
    mixed = [*losses, "{a: pull_push.PullPush, b: NTXentLoss}"]
    refused(run("fit", *tiny, "--output", tmp_path, *mixed), "--model.normalize", "PullPush False, NTXentLoss True")


class Pictures(nn.Sequential):
    num_features = 12

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(3 * 8 * 8, 12))


class OnceAClass(nn.Module):
    samples_per_class, loss_lr, normalize = 1, 0.5, False

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, embeddings, labels, indices_tuple=None):
        return embeddings.square().sum() * self.weight.sum()


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """8 classes of 6 pictures."""
    return noise_images(tmp_path, 48, samples=6, height=8, width=8, suffix=".png")


def data_of(table: Path) -> MetricDataModule:
    transforms = ImageTransforms(crop_size=8, resize=8, scale=(1.0, 1.0), horizontal_flip=False)
    return MetricDataModule(ImageTable(table), batch_size=8, steps_per_epoch=2, transforms=transforms, num_folds=2)


def test_a_second_fit_takes_the_samples_of_its_own_loss(table):
    data = data_of(table)
    for loss, samples in ((OnceAClass, 1), (ContrastiveLoss, 4), (OnceAClass, 1)):
        small_trainer().fit(MetricLearner(Pictures(), loss, embedding_size=4), data)
        assert data.train_dataloader().sampler.samples_per_class == samples
    assert data.samples_per_class is None


@pytest.mark.parametrize("kind", [WeightedSum, partial(partial, WeightedSum)])
def test_losses_of_a_sum_that_differ_need_the_option(table, kind):
    loss = kind({"a": OnceAClass(), "b": ContrastiveLoss()})
    with pytest.raises(UserError, match=r"--model\.normalize.*OnceAClass False, ContrastiveLoss True"):
        MetricLearner(Pictures(), loss, embedding_size=4)
    with pytest.warns(UserWarning, match=r"--model\.normalize true: OnceAClass"):
        learner = MetricLearner(Pictures(), loss, embedding_size=4, normalize=True)
    assert learner.configure_optimizers().param_groups[-1]["lr"] == 0.5  # a loss without weights needs no rate
    learner = MetricLearner(Pictures(), loss, embedding_size=4, normalize=False)
    with pytest.raises(UserError, match=r"--data\.samples_per_class.*OnceAClass 1, ContrastiveLoss 4"):
        small_trainer().fit(learner, data_of(table))


def test_a_tensor_that_no_checkpoint_holds_and_frozen_batch_norm_over_random_weights_are_warned_of(table):
    loss = ContrastiveLoss()
    loss.centers = torch.zeros(4)
    with pytest.warns(UserWarning, match=r"--model\.loss ContrastiveLoss: self\.centers") as found:
        small_trainer().fit(MetricLearner(small_trunk(), loss, embedding_size=4), data_of(table))
    assert "--model.freeze_batch_norm false" in "".join(str(each.message) for each in found)


def test_classes_that_no_other_program_can_import_are_warned_of(table, monkeypatch):
    parts = (OnceAClass, Pictures, MetricLearner, ImageTransforms)
    for kind in parts:
        monkeypatch.setattr(kind, "__module__", "__main__")
    with pytest.warns(UserWarning, match="move it to a module") as warned:
        small_trainer().fit(MetricLearner(Pictures(), WeightedSum({"a": OnceAClass()})), data_of(table))
    (line,) = [str(each.message) for each in warned if "move it" in str(each.message)]
    assert set(line.partition(":")[0].split(", ")) == {kind.__name__ for kind in parts}
