"""What a loss of the user's says beside its number: class attributes, terms for the log, and that it takes metadata."""

import csv
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image
from refused import refused
from small_fit import small_trainer, small_trunk
from torch import nn

from levelfield.data.datamodule import MetricDataModule
from levelfield.data.datasets import ImageTable
from levelfield.data.transforms import ImageTransforms
from levelfield.errors import UserError
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
    normalize = False
    samples_per_class = 2
    loss_lr = 0.25

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
    steps = (
        "--data.dataset.num_classes 24 --data.steps_per_epoch 3 --trainer.max_epochs 1 --trainer.log_every_n_steps 1"
    )
    loss = ["--model.loss", "pull_push.PullPush", "--name", name, "--output", tmp_path]
    code, _, complaint = run("fit", *tiny, *loss, *steps.split(), *words)
    assert code == 0, complaint
    folder = tmp_path / "fit" / name / "0"
    with open(folder / "metrics.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["train/loss"]]
    return yaml.safe_load((folder / "config.yaml").read_text()), rows


@pytest.mark.slow
def test_class_attributes_are_settings_that_an_option_overrides(run, tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config, rows = fitted(run, tiny, tmp_path, "attributes")
    assert (config["model"]["normalize"], config["model"]["loss_lr"]) == (False, 0.25)
    assert config["data"]["samples_per_class"] == 2
    # AdamW's first steps move a weight by its learning rate each.
    moved = [float(row["train/temperature"]) for row in rows]
    assert abs(moved[0] - 2.0) == pytest.approx(0.25, rel=1e-3)
    for row in rows:
        assert float(row["train/loss"]) == pytest.approx(float(row["train/pull"]) + float(row["train/push"]), rel=1e-6)
    assert "train/matrix" not in rows[0]
    words = ["--model.normalize", "true", "--model.loss_lr", "0.1", "--data.samples_per_class", "4"]
    with pytest.warns(UserWarning, match=r"--model\.normalize true: PullPush"):
        config, rows = fitted(run, tiny, tmp_path, "options", *words)
    assert (config["model"]["normalize"], config["model"]["loss_lr"]) == (True, 0.1)
    assert config["data"]["samples_per_class"] == 4
    assert abs(float(rows[0]["train/temperature"]) - 2.0) == pytest.approx(0.1, rel=1e-3)

    losses = ["--model.loss", "WeightedSum", "--model.loss.losses"]
    both, mixed = "{a: pull_push.PullPush, b: pull_push.PullPush}", "{a: pull_push.PullPush, b: NTXentLoss}"
    memory = ["--model.loss", "CrossBatchMemory", "--model.loss.loss", "pull_push.RawPairs"]
    for name, words in {"sum": [*losses, both], "memory": memory}.items():
        config, _ = fitted(run, tiny, tmp_path, name, *words)
        assert (config["model"]["normalize"], config["model"]["loss_lr"]) == (False, 0.25)
        assert config["data"]["samples_per_class"] == 2
    command, options = ["fit", *tiny, "--output", tmp_path, *losses, mixed], []
    for key, given, values in (
        ("model.normalize", "false", "PullPush False, NTXentLoss True"),
        ("data.samples_per_class", "4", "PullPush 2, NTXentLoss 4"),
    ):
        refused(run(*command, *options), f"--{key}", values)
        options += [f"--{key}", given]
    code, _, complaint = run(*command, *options, "--trainer.max_epochs", "1", "--data.steps_per_epoch", "1")
    assert code == 0, complaint


class Pictures(nn.Module):
    num_features = 12

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3 * 8 * 8, 12)

    def forward(self, images):
        return self.layer(images.flatten(1))


class OnceAClass(nn.Module):
    samples_per_class, loss_lr, normalize = 1, 0.5, False

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.seen = []

    def forward(self, embeddings, labels, indices_tuple=None):
        self.seen.append(labels.tolist())
        return embeddings.square().sum() * self.weight.sum()


class YearLoss(nn.Module):
    """Keeps the years of the samples that it is given, and the values that it finds in their pictures."""

    column = "year"

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, embeddings, labels, metadata):
        self.seen.append(metadata[self.column].tolist())
        return embeddings.square().sum()


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """48 pictures of 8 classes, each of one grey value, with a year that says it, a name and a column of gaps."""
    lines = ["path,label,year,by,score"]
    for number in range(48):
        Image.new("RGB", (8, 8), (5 * number,) * 3).save(tmp_path / f"{number}.png")
        score = "" if number % 2 else f"{number / 2}"
        lines.append(f"{number}.png,class {number % 8},{1900 + number},Ann,{score}")
    (tmp_path / "table.csv").write_text("\n".join(lines))
    return tmp_path / "table.csv"


def data_of(table: Path, batch_size: int = 8) -> MetricDataModule:
    transforms = ImageTransforms(crop_size=8, resize=8, scale=(1.0, 1.0), horizontal_flip=False)
    return MetricDataModule(
        ImageTable(table), batch_size=batch_size, steps_per_epoch=2, transforms=transforms, num_folds=2
    )


def fit(learner: MetricLearner, data: MetricDataModule) -> None:
    small_trainer().fit(learner, data)


def test_a_second_fit_takes_the_samples_of_its_own_loss(table):
    data = data_of(table)
    for loss, samples in ((OnceAClass, 1), (ContrastiveLoss, 4), (OnceAClass, 1)):
        fit(MetricLearner(Pictures(), loss, embedding_size=4), data)
        assert data.train_dataloader().sampler.samples_per_class == samples
    assert data.samples_per_class is None


def in_a_sum(**losses: object) -> tuple[object, object]:
    """A sum as a module and as a partial."""
    made = {name: loss() if isinstance(loss, type) else loss for name, loss in losses.items()}
    return WeightedSum(made), partial(WeightedSum, losses=losses)


@pytest.mark.parametrize("loss", [OnceAClass, *in_a_sum(a=OnceAClass, b=WeightedSum({"c": OnceAClass()}))])
def test_class_attributes_hold_in_python_too_and_in_a_sum(table, loss):
    learner = MetricLearner(Pictures(), loss, embedding_size=4)
    assert not learner.normalize
    assert learner.configure_optimizers().param_groups[-1]["lr"] == 0.5
    fit(learner, data_of(table, batch_size=4))
    found = learner.loss.losses["a"] if isinstance(learner.loss, WeightedSum) else learner.loss
    assert all(max(Counter(labels).values()) <= 2 for labels in found.seen)  # 2 classes train, 4 samples


@pytest.mark.parametrize("loss", in_a_sum(a=OnceAClass, b=ContrastiveLoss))
def test_losses_of_a_sum_that_differ_need_the_option(table, loss):
    with pytest.raises(UserError, match=r"--model\.normalize.*OnceAClass False, ContrastiveLoss True"):
        MetricLearner(Pictures(), loss, embedding_size=4)
    with pytest.warns(UserWarning, match=r"--model\.normalize true: OnceAClass"):
        learner = MetricLearner(Pictures(), loss, embedding_size=4, normalize=True)
    assert learner.configure_optimizers().param_groups[-1]["lr"] == 0.5  # a loss without weights needs no rate
    learner = MetricLearner(Pictures(), loss, embedding_size=4, normalize=False)
    with pytest.raises(UserError, match=r"--data\.samples_per_class.*OnceAClass 1, ContrastiveLoss 4"):
        fit(learner, data_of(table))


class Seeing(MetricLearner):
    def training_step(self, batch, batch_idx):
        self.grey = [round(float(image.mean()) * 255 / 5) for image in batch[0]]
        return super().training_step(batch, batch_idx)

    def compute_loss(self, embeddings, labels):
        value = super().compute_loss(embeddings, labels)
        years = (self.loss.losses["b"] if isinstance(self.loss, WeightedSum) else self.loss).seen[-1]
        assert years == [1900 + number for number in self.grey]
        return value


@pytest.mark.parametrize("loss", [YearLoss(), WeightedSum({"a": ContrastiveLoss(), "b": YearLoss()})])
def test_a_loss_gets_the_columns_of_its_samples(table, loss):
    fit(Seeing(Pictures(), loss, embedding_size=4), data_of(table))
    assert (loss.losses["b"] if isinstance(loss, WeightedSum) else loss).seen


@pytest.mark.parametrize(
    ("column", "key"), [("by", r"metadata\['by'\].*'Ann'"), ("yaer", r"metadata\['yaer'\].*'year'")]
)
def test_a_column_of_text_or_of_another_name_is_refused(table, column, key):
    loss = YearLoss()
    loss.column = column
    with pytest.raises(UserError, match=key):
        fit(MetricLearner(Pictures(), loss, embedding_size=4), data_of(table))


def test_an_empty_cell_is_no_number_and_data_without_further_columns_are_refused(table):
    loss = YearLoss()
    loss.column = "score"
    fit(MetricLearner(Pictures(), loss, embedding_size=4), data_of(table))
    values = torch.tensor(loss.seen).flatten()
    assert (values[values.isfinite()] % 1 == 0).all()
    table.write_text("\n".join(",".join(line.split(",")[:2]) for line in table.read_text().splitlines()))
    with pytest.raises(UserError, match="YearLoss takes metadata"):
        fit(MetricLearner(Pictures(), YearLoss(), embedding_size=4), data_of(table))


class Careless(nn.Module):
    def __init__(self):
        super().__init__()
        self.centers = torch.zeros(4)

    def forward(self, embeddings, labels):
        return (embeddings - self.centers).square().sum()


def test_a_tensor_that_no_checkpoint_holds_is_warned_of(table):
    with pytest.warns(UserWarning, match=r"--model\.loss Careless: self\.centers"):
        fit(MetricLearner(Pictures(), Careless(), embedding_size=4), data_of(table))


def test_classes_that_no_other_program_can_import_are_warned_of(table, monkeypatch):
    parts = (OnceAClass, Pictures, MetricLearner, ImageTransforms)
    for kind in parts:
        monkeypatch.setattr(kind, "__module__", "__main__")
    with pytest.warns(UserWarning, match="move it to a module") as warned:
        fit(MetricLearner(Pictures(), WeightedSum({"a": OnceAClass()}), embedding_size=4), data_of(table))
    (line,) = [str(each.message) for each in warned if "move it" in str(each.message)]
    assert set(line.partition(":")[0].split(", ")) == {kind.__name__ for kind in parts}


def test_frozen_batch_norm_over_random_weights_is_warned_of(table):
    with pytest.warns(UserWarning, match=r"--model\.freeze_batch_norm false"):
        fit(MetricLearner(small_trunk(), ContrastiveLoss(), embedding_size=4), data_of(table))
