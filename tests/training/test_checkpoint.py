"""What a checkpoint may use, and how it is trusted; attacks are in `test_strangers_checkpoints.py`."""

import sys
from importlib import import_module

import pytest
import torch
from lightning.pytorch import LightningDataModule
from PIL import Image
from plain_lightning import spec
from refused import refused, succeeded
from small_fit import small_data, small_learner, small_trainer
from tiny_fit import TINY
from torch.utils.data import DataLoader, TensorDataset

from levelfield.cli.main import main
from levelfield.core.errors import UserError
from levelfield.losses import ArcFaceLoss, ContrastiveLoss
from levelfield.models import TimmTrunk
from levelfield.training.checkpoint import load_learner
from levelfield.training.learner import MetricLearner
from levelfield.use.encoder import embed

PLANTED = """
import pathlib
from levelfield.data import Glyphs
from levelfield.losses import ContrastiveLoss
from levelfield.models import TimmTrunk

pathlib.Path({file!r}).write_text("imported")


class Loss(ContrastiveLoss): ...


class Trunk(TimmTrunk): ...


class Letters(Glyphs): ...
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """What a tiny fit of one epoch stores. Copy it before a change."""
    output = tmp_path_factory.mktemp("fitted")
    words = ["fit", *TINY, "--model.loss", "ContrastiveLoss", "--trainer.max_epochs", "1"]
    assert main([*words, "--output", str(output), "--name", "it"]) == 0
    return torch.load(output / "fit/it/0/best.ckpt", weights_only=True)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A working directory with a module that writes `written` when it is imported."""
    (tmp_path / "planted.py").write_text(PLANTED.format(file=str(tmp_path / "written")))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("planted", None)


def changed(checkpoint, place, section, key, value):
    """A file of the checkpoint with one of its arguments changed."""
    own, name = dict(checkpoint), {"model": "hyper_parameters", "data": "datamodule_hyper_parameters"}[section]
    own[name] = {**own[name], key: value}
    torch.save(own, place / "it.ckpt")
    return place / "it.ckpt"


def test_what_the_command_line_trusts_is_used(checkpoint, place, run):
    path = changed(checkpoint, place, "data", "dataset", spec("planted.Letters", num_classes=40))
    own = torch.load(path, weights_only=True)
    own["hyper_parameters"]["trunk"] = {**own["hyper_parameters"]["trunk"], "class_path": "planted.Trunk"}
    torch.save(own, path)
    refused(run("validate", "--ckpt_path", path, "--trust=planted.Trunk"), "planted.Letters", "--trust planted\n")
    succeeded(run("validate", "--ckpt_path", path, "--trust", "planted"))
    assert (place / "written").exists()


def test_trust_in_python(checkpoint, place):
    path = changed(checkpoint, place, "model", "loss", spec("planted.Loss"))
    with pytest.raises(UserError, match=r"--trust planted"):
        MetricLearner.load_from_checkpoint(path)
    learner = MetricLearner.load_from_checkpoint(path, trust=["planted"])
    assert type(learner.loss).__module__ == "planted"
    # It is imported now: to import it again runs nothing.
    assert type(MetricLearner.load_from_checkpoint(path).loss).__name__ == "Loss"


def test_a_trusted_module_opens_no_way_to_what_it_imported(checkpoint, place):
    (place / "planted.py").write_text("import subprocess\nfrom torch.fx import GraphModule\n")
    popen = spec("planted.subprocess.Popen", args="id > written", shell=True)
    for loss, key in ((popen, "Popen"), (spec("planted.GraphModule", root={}, graph={}), r"torch\.fx")):
        with pytest.raises(UserError, match=key):
            MetricLearner.load_from_checkpoint(changed(checkpoint, place, "model", "loss", loss), trust=["planted"])
    assert not (place / "written").exists()


def test_a_loss_of_a_library_that_is_not_here_is_left_out_with_a_warning(checkpoint, place):
    path = changed(checkpoint, place, "model", "loss", spec("pytorch_metric_learning.losses.NoSuchLoss"))
    with pytest.warns(UserWarning, match="NoSuchLoss"):
        learner = MetricLearner.load_from_checkpoint(path)
    assert learner(torch.rand(2, 3, 32, 32)).shape == (2, checkpoint["hyper_parameters"]["embedding_size"])


PLAIN = """
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import nn


@dataclass
class Rates:
    head: float
    betas: tuple[float, float] = (0.9, 0.999)


class Plain(LightningModule):
    def __init__(
        self,
        backbone: nn.Module,
        loss: nn.Module,
        head: Callable[[int], nn.Module],
        activation: Callable = torch.nn.functional.gelu,
        norm: type[nn.Module] | None = None,
        optimizer: Callable[[Any], torch.optim.Optimizer] = torch.optim.SGD,
        rates: Rates | None = None,
        mode: str = "nothing",
    ):
        super().__init__()
        self.backbone, self.loss, self.head = backbone, loss, head(8)
        self.activation, self.norm, self.optimizer, self.rates, self.mode = activation, norm, optimizer, rates, mode
"""


def test_any_module_is_rebuilt_by_the_types_of_its_arguments(place):
    (place / "plain.py").write_text(PLAIN)
    arguments = {
        "learner": "plain.Plain",
        "backbone": spec("levelfield.models.TimmTrunk", name="test_resnet"),  # of no weights, which it does not say
        "loss": spec("levelfield.losses.ContrastiveLoss", neg_margin=0.25),
        "head": spec("torch.nn.Linear", out_features=3),
        "activation": "torch.nn.functional.relu",
        "norm": "torch.nn.LayerNorm",
        "optimizer": spec("torch.optim.Adam", lr=0.5),
        "rates": {"head": 0.1, "betas": [0.5, 0.6]},
        "mode": "a.b",
    }
    trunk, loss = TimmTrunk("test_resnet", weights=None), ContrastiveLoss()
    found = import_module("plain").Plain(trunk, loss, lambda size: torch.nn.Linear(size, 3))
    content = {"levelfield": {}, "hyper_parameters": arguments, "state_dict": found.state_dict()}
    torch.save(content, place / "it.ckpt")
    for kind in (None, type(found)):
        learner = load_learner(kind, place / "it.ckpt")
        assert (type(learner), learner.backbone.weights_origin) == (type(found), "random")
        torch.testing.assert_close(learner.head.weight, found.head.weight)
        assert (learner.activation, learner.norm) == (torch.nn.functional.relu, torch.nn.LayerNorm)
        assert (learner.loss.neg_margin, learner.optimizer(learner.parameters()).defaults["lr"]) == (0.25, 0.5)
        assert (learner.rates.head, learner.rates.betas, learner.mode) == (0.1, (0.5, 0.6), "a.b")
    del sys.modules["plain"]  # as in another process
    with pytest.raises(UserError, match="--trust plain"):
        load_learner(None, place / "it.ckpt")
    assert type(load_learner(None, place / "it.ckpt", trust=["plain"])).__name__ == "Plain"
    for key in ("backbone", "head", "activation", "norm", "optimizer"):
        value = spec("subprocess.Popen", args="id > written", shell=True) if key == "head" else "subprocess.Popen"
        torch.save({**content, "hyper_parameters": {**arguments, key: value}}, place / "it.ckpt")
        with pytest.raises(UserError, match=r"it\.ckpt"):
            load_learner(None, place / "it.ckpt", trust=["plain"])
    assert not (place / "written").exists()


VALUES = [*((key, "many") for key in ("embedding_size", "normalize", "trunk_lr", "distance")), ("distance", ["cosine"])]
VALUES += [*((key, "many") for key in ("batch_size", "split", "transforms")), ("root", 3)]


@pytest.mark.parametrize(("key", "value"), VALUES)
def test_a_value_of_another_type_is_one_line(key, value, checkpoint, place, run):
    section = "model" if key in checkpoint["hyper_parameters"] else "data"
    refused(run("validate", "--ckpt_path", changed(checkpoint, place, section, key, value)), "it.ckpt")


class Saving(MetricLearner):
    """Lightning's habit stores each argument, objects among them."""

    def __init__(self, *, noise: float = 0.1, **kwargs):
        super().__init__(**kwargs)
        self.noise = noise
        self.save_hyperparameters()

    def forward(self, samples):
        return -super().forward(samples)


@pytest.mark.usefixtures("quiet")
@pytest.mark.filterwarnings("ignore:Attribute .* is an instance")
def test_a_subclass_comes_back_as_itself_without_objects(tmp_path):
    learner = small_learner(ArcFaceLoss, Saving, noise=0.3)
    small_trainer(max_steps=1).fit(learner, small_data(batch_size=8))
    learner.trainer.save_checkpoint(tmp_path / "it.ckpt")
    images = torch.rand(3, 3, 32, 32)
    for kind in (MetricLearner, Saving):
        loaded = kind.load_from_checkpoint(tmp_path / "it.ckpt")
        assert (type(loaded), loaded.noise, loaded.trunk.init_args["name"]) == (Saving, 0.3, "test_resnet")
        torch.testing.assert_close(loaded(images), learner.eval()(images))


class Foreign(LightningDataModule):
    """Names of `MetricDataModule` with another meaning."""

    features = ("width", "height")

    def __init__(self, transforms: str = "flip") -> None:
        super().__init__()
        self.save_hyperparameters()
        self.identity, self.train_samples, self.dataset, self.fold, self.cache = "mine", 16, "letters", 3, {}

    def train_dataloader(self):
        samples = TensorDataset(torch.rand(16, 3, 32, 32), torch.arange(16) // 4, torch.arange(16))
        return DataLoader(samples, batch_size=16)

    val_dataloader = test_dataloader = train_dataloader


@pytest.mark.usefixtures("quiet")
def test_a_foreign_datamodule_is_not_taken_for_ours(tmp_path):
    trainer = small_trainer(default_root_dir=tmp_path, enable_checkpointing=True)
    trainer.fit(small_learner(), datamodule=Foreign())
    trainer.test(small_learner(), datamodule=Foreign(), verbose=False)
    path = trainer.checkpoint_callback.best_model_path
    assert torch.load(path, weights_only=True)["levelfield"]["data"] is None
    with pytest.raises(UserError, match="transforms=ImageTransforms"):
        embed(path, [Image.new("RGB", (32, 32))])
    with pytest.raises(UserError, match=r"model\.embedder_init"):
        small_trainer().fit(small_learner(embedder_init="pca"), datamodule=Foreign())


class Worded(ContrastiveLoss):
    """Its arguments have no types."""

    def __init__(self, mode, words=(), named=None):
        super().__init__()
        self.mode, self.words, self.named = mode, words, named


@pytest.mark.usefixtures("quiet")
def test_a_text_stays_one_whatever_a_parser_reads_in_it(tmp_path):
    texts = ["no", "1", "null", "[1]", "a: b", "1e3"]
    learner = small_learner(Worded("no", texts, {"x": "off"}))
    trainer = small_trainer(max_steps=1)
    trainer.fit(learner, small_data(batch_size=8))
    trainer.save_checkpoint(tmp_path / "it.ckpt")
    loss = MetricLearner.load_from_checkpoint(tmp_path / "it.ckpt").loss
    assert (loss.mode, [*loss.words], loss.named) == ("no", texts, {"x": "off"})
