"""What a loss of the user's says beside its number, what a step logs of it, and what no step can train with."""

import csv
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml
from lightning.pytorch.callbacks import LambdaCallback
from refused import succeeded
from small_fit import Looks, small_data, small_learner, small_trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchvision.transforms.v2.functional import normalize

from levelfield.core.errors import TrainingFailed, UserError
from levelfield.data.datamodule import MetricDataModule
from levelfield.data.transforms import ImageTransforms
from levelfield.losses import ContrastiveLoss, WeightedSum
from levelfield.models import TimmTrunk
from levelfield.models.trunks import ModuleTrunk
from levelfield.training.learner import MetricLearner

pytestmark = [pytest.mark.usefixtures("quiet"), pytest.mark.filterwarnings("ignore:You defined a `validation_step`")]

LOSS = """
import torch
from torch import nn

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
BATCHES = DataLoader([(torch.rand(8, 12), torch.arange(8) // 2)] * 20, batch_size=None)
NAN, FINE = torch.tensor([[0.0], [torch.nan]]).expand(2, 12), torch.rand(8, 12)
PAIRS = (FINE, torch.arange(8) // 2)
MISTAKES = [
    (PAIRS, lambda points: points.sum(1), r"--model\.loss Gives .*\(8,\)"),
    (PAIRS, lambda points: None, r"--model\.loss Gives .*NoneType"),
    (PAIRS, lambda points: points.detach().sum(), r"--model\.loss Gives .*gradient"),
    # No learning rate is blamed for the first loss.
    (PAIRS, lambda points: points.sum() * torch.inf, r"step 0: .*\binitial weights\b(?!.*_lr)"),
    ((NAN, torch.zeros(2), torch.tensor([4, 7])), torch.sum, r"step 0: .*\b1 of 2\b.*\b7 in the data set"),
    ((NAN, torch.zeros(2)), torch.sum, r"step 0: .*\b1 of 2\b.*\b1 in the batch"),
]


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
    words += ["--model.regularizer", "KoLeo", "--model.regularizer.weight", "0.1"]
    with pytest.warns(UserWarning, match=r"--model\.normalize true: PullPush"):
        config, rows = fitted(run, tiny, tmp_path, "options", *words)
    assert settings(config) == (True, 0.1, 4)
    for row in rows:
        loss, pull, push, penalty = (float(row[f"train/{name}"]) for name in ("loss", "pull", "push", "regularizer"))
        assert loss == pytest.approx(pull + push + 0.1 * penalty, rel=1e-6)
    assert abs(float(rows[0]["train/temperature"]) - 2.0) == pytest.approx(0.1, rel=1e-3)


class OnceAClass(nn.Module):
    samples_per_class, loss_lr, normalize = 1, 0.5, False

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, embeddings, labels, indices_tuple=None):
        return embeddings.square().sum() * self.weight.sum()


def data() -> MetricDataModule:
    return small_data(16, batch_size=8, steps_per_epoch=1, num_folds=2)


def test_a_second_fit_takes_the_samples_of_its_own_loss():
    samples = data()
    for loss, expected in ((OnceAClass, 1), (ContrastiveLoss, 4), (OnceAClass, 1)):
        small_trainer().fit(small_learner(loss), samples)
        assert samples.train_dataloader().sampler.samples_per_class == expected
    assert samples.samples_per_class is None


@pytest.mark.parametrize("kind", [WeightedSum, partial(partial, WeightedSum)])
def test_losses_of_a_sum_that_differ_need_the_option(kind):
    loss = kind({"a": OnceAClass(), "b": ContrastiveLoss()})
    with pytest.raises(UserError, match=r"--model\.normalize.*OnceAClass False, ContrastiveLoss True"):
        small_learner(loss)
    with pytest.warns(UserWarning, match=r"--model\.normalize true: OnceAClass"):
        learner = small_learner(loss, normalize=True)
    assert learner.configure_optimizers().param_groups[-1]["lr"] == 0.5  # a loss without weights needs no rate
    with pytest.raises(UserError, match=r"--data\.samples_per_class.*OnceAClass 1, ContrastiveLoss 4"):
        small_trainer().fit(small_learner(loss, normalize=False), data())


def test_what_silently_trains_worse_or_cannot_be_loaded_is_warned_of(monkeypatch):
    """A tensor that no checkpoint holds, frozen batch norm over random weights, and classes of the program itself."""
    loss, parts = OnceAClass(), (OnceAClass, MetricLearner, TimmTrunk, ImageTransforms)
    loss.centers = torch.zeros(4)
    for kind in parts:
        monkeypatch.setattr(kind, "__module__", "__main__")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        small_trainer().fit(small_learner(WeightedSum({"a": loss})), data())
    lines = [str(each.message) for each in found]
    for warned in ("--model.loss OnceAClass: self.centers", "--model.freeze_batch_norm false"):
        assert len([line for line in lines if warned in line]) == 1
    (line,) = [line for line in lines if "move it to a module" in line]
    assert set(line.partition(":")[0].split(", ")) == {kind.__name__ for kind in parts}


def learner_of(loss: nn.Module) -> MetricLearner:
    given = {"embedding_size": 4, "optimizer": lambda groups: torch.optim.SGD(groups, lr=0.1)}
    return MetricLearner(ModuleTrunk(nn.Identity(), 12), loss, **given)


@pytest.mark.parametrize(("trainer", "shows_a_bar"), [({}, True), ({"max_steps": 15}, False)])
def test_between_two_looks_at_the_loss_no_step_reads_it(trainer, shows_a_bar, capsys):
    with Looks() as looks:
        steps = LambdaCallback(on_train_batch_start=lambda *given: setattr(looks, "step", given[3]))
        given = {"limit_val_batches": 0, "log_every_n_steps": 10, "enable_progress_bar": shows_a_bar, **trainer}
        small_trainer(steps, **given).fit(learner_of(ContrastiveLoss()), BATCHES)
    assert [looks.counts[step] for step in (*range(1, 9), 11, 12)] == [0] * 10
    assert looks.counts[10] > 0
    assert not shows_a_bar or "train/loss" in capsys.readouterr().out


class Gives(nn.Module):
    """A loss of somebody's own."""

    def __init__(self, given):
        super().__init__()
        self.given = given

    def forward(self, embeddings, labels):
        return self.given(embeddings)


def test_each_accumulated_batch_draws_anew_and_the_first_of_a_step_the_same_whatever_is_accumulated():
    draws: dict[int, list[float]] = {1: [], 2: [], 3: []}
    for accumulated, seen in draws.items():
        loss = Gives(lambda embeddings, seen=seen: seen.append(float(torch.rand(()))) or embeddings.square().sum())
        batches = {"limit_train_batches": 4, "limit_val_batches": 0, "accumulate_grad_batches": accumulated}
        small_trainer(**batches).fit(learner_of(loss), BATCHES)
        assert len(set(seen)) == 4
    assert draws[2][::2] == draws[1][:2]


@pytest.mark.parametrize(("batch", "given", "key"), MISTAKES)
def test_what_is_no_loss_or_not_finite_is_named(batch, given, key):
    often = 0 if given is not torch.sum else 50  # no logging is no division by zero
    trainer = small_trainer(max_steps=1, limit_val_batches=0, log_every_n_steps=often)
    with pytest.raises(TrainingFailed if "step 0" in key else UserError, match=key):
        trainer.fit(learner_of(Gives(given)), DataLoader([batch], batch_size=None))


def test_images_that_the_trunk_does_not_expect_are_warned_of_once() -> None:
    images, labels = torch.rand(16, 3, 32, 32, generator=torch.Generator().manual_seed(0)), torch.arange(16) // 4
    flat = ModuleTrunk(nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 4)), 4)  # does not standardise
    for given, trunk, range_ in (
        (images + 0.3 * (images.flip(0) - 0.5), {}, None),  # noise, or the overshoot of an interpolation
        ((images * 255).to(torch.uint8), {}, None),
        (images * 255, {"trunk": flat}, None),
        (images * 255, {}, "to 255"),
        (normalize(images, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), {}, "-2.12 to 2.64"),
    ):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            loader = DataLoader(TensorDataset(given, labels), batch_size=8)
            small_trainer(max_epochs=2).fit(small_learner(**trunk), loader)
        lines = [str(each.message) for each in found if "standardise" in str(each.message)]
        assert len(lines) == (range_ is not None), lines
        assert all(range_ in line and "Normalize" in line for line in lines), lines
