"""What a checkpoint may use, and how it is trusted; attacks are in `test_strangers_checkpoints.py`."""

import copy
import sys
from importlib import import_module

import pytest
import torch
from lightning.pytorch import LightningDataModule
from PIL import Image
from refused import refused
from small_fit import small_learner, small_trainer
from torch.utils.data import DataLoader, TensorDataset

from levelfield.errors import UserError
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


class Loss(ContrastiveLoss):
    pass


class Trunk(TimmTrunk):
    pass


class Letters(Glyphs):
    pass
"""


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
    own = copy.deepcopy({name: part for name, part in checkpoint.items() if name != "state_dict"})
    own["state_dict"] = checkpoint["state_dict"]
    own[{"model": "hyper_parameters", "data": "datamodule_hyper_parameters"}[section]][key] = value
    torch.save(own, place / "it.ckpt")
    return place / "it.ckpt"


def spec(class_path, **init_args):
    return {"class_path": class_path, "init_args": init_args}


PLANTED_LOSS = spec("planted.Loss")


def test_a_network_within_the_trunk_gets_no_weights_either(checkpoint, place):
    inner = spec("levelfield.models.TimmTrunk", name="test_resnet", weights="package:planted.weights")
    trunk = spec("levelfield.models.trunks.ModuleTrunk", module=inner)
    learner = MetricLearner.load_from_checkpoint(changed(checkpoint, place, "model", "trunk", trunk), strict=False)
    assert learner.trunk.weights_origin == "random"
    assert not (place / "written").exists()


def test_what_the_command_line_trusts_is_used(checkpoint, place, run):
    path = changed(checkpoint, place, "data", "dataset", spec("planted.Letters", num_classes=40))
    own = torch.load(path, weights_only=True)
    own["hyper_parameters"]["trunk"] = {**own["hyper_parameters"]["trunk"], "class_path": "planted.Trunk"}
    torch.save(own, path)
    code, _, complaint = run("validate", "--ckpt_path", path, "--trust=planted.Trunk")
    assert code == 2
    assert "planted.Letters" in complaint
    assert complaint.strip().endswith("--trust planted")
    code, _, complaint = run("validate", "--ckpt_path", path, "--trust", "planted")
    assert code == 0, complaint
    assert (place / "written").exists()


def test_trust_in_python(checkpoint, place):
    path = changed(checkpoint, place, "model", "loss", PLANTED_LOSS)
    with pytest.raises(UserError, match=r"--trust planted"):
        MetricLearner.load_from_checkpoint(path)
    learner = MetricLearner.load_from_checkpoint(path, trust=["planted"])
    assert type(learner.loss).__module__ == "planted"
    # It is imported now: to import it again runs nothing.
    assert type(MetricLearner.load_from_checkpoint(path).loss).__name__ == "Loss"


def test_a_trusted_module_opens_no_way_to_what_it_imported(checkpoint, place):
    (place / "planted.py").write_text("import subprocess\nfrom torch import nn\nfrom torch.fx import GraphModule\n")
    path = changed(
        checkpoint, place, "model", "loss", spec("planted.subprocess.Popen", args="id > written", shell=True)
    )
    with pytest.raises(UserError, match="Popen"):
        MetricLearner.load_from_checkpoint(path, trust=["planted"])
    path = changed(checkpoint, place, "model", "loss", spec("planted.GraphModule", root={}, graph={}))
    with pytest.raises(UserError, match=r"torch\.fx"):
        MetricLearner.load_from_checkpoint(path, trust=["planted"])
    assert not (place / "written").exists()


def test_a_loss_of_a_library_that_is_not_here_is_left_out_with_a_warning(checkpoint, place):
    path = changed(checkpoint, place, "model", "loss", spec("pytorch_metric_learning.losses.NoSuchLoss"))
    with pytest.warns(UserWarning, match="NoSuchLoss"):
        learner = MetricLearner.load_from_checkpoint(path)
    assert learner(torch.rand(2, 3, 32, 32)).shape == (2, checkpoint["hyper_parameters"]["embedding_size"])


def test_a_miner_is_no_loss(checkpoint, place):
    inner = spec("levelfield.miners.MultiSimilarityMiner", epsilon=0.3)
    with pytest.raises(UserError, match="MultiSimilarityMiner"):
        MetricLearner.load_from_checkpoint(changed(checkpoint, place, "model", "loss", inner))


PLAIN = """
from collections.abc import Callable
from dataclasses import dataclass

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
        optimizer: Callable = torch.optim.SGD,
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
    found = import_module("plain").Plain(
        TimmTrunk("test_resnet", weights=None), ContrastiveLoss(), lambda size: torch.nn.Linear(size, 3)
    )
    content = {"levelfield": {}, "hyper_parameters": arguments, "state_dict": found.state_dict()}
    torch.save(content, place / "it.ckpt")
    for kind in (None, type(found)):
        learner = load_learner(kind, place / "it.ckpt")
        assert type(learner) is type(found)
        assert learner.backbone.weights_origin == "random"
        assert learner.loss.neg_margin == 0.25
        torch.testing.assert_close(learner.head.weight, found.head.weight)
        assert (learner.activation, learner.norm) == (torch.nn.functional.relu, torch.nn.LayerNorm)
        assert learner.optimizer(learner.parameters()).defaults["lr"] == 0.5
        assert (learner.rates.head, learner.rates.betas) == (0.1, (0.5, 0.6))
        assert learner.mode == "a.b"
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


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        *(("model", "distance", value) for value in ("nearest", ["cosine"])),
        *(("model", key, "many") for key in ("embedding_size", "normalize", "trunk_lr")),
        *(("data", key, "many") for key in ("batch_size", "split", "cache", "transforms")),
        ("data", "root", 3),
    ],
)
def test_a_value_of_another_type_is_one_line(section, key, value, checkpoint, place, run):
    refused(run("validate", "--ckpt_path", changed(checkpoint, place, section, key, value)), "it.ckpt")


class Saving(MetricLearner):
    """Lightning's habit stores each argument, objects among them."""

    def __init__(self, *, noise: float = 0.1, **kwargs):
        super().__init__(**kwargs)
        self.noise = noise
        self.save_hyperparameters()

    def forward(self, samples):
        return -super().forward(samples)


@pytest.mark.filterwarnings("ignore:Attribute .* is an instance")
def test_a_subclass_comes_back_as_itself_without_objects(tmp_path):
    learner = small_learner(ArcFaceLoss, Saving, noise=0.3)
    learner.build_loss(3)
    content = {"hyper_parameters": dict(learner.hparams), "state_dict": learner.state_dict()}
    learner.on_save_checkpoint(content)
    torch.save(content, tmp_path / "it.ckpt")
    images = torch.rand(3, 3, 32, 32)
    for kind in (MetricLearner, Saving):
        loaded = kind.load_from_checkpoint(tmp_path / "it.ckpt")
        assert (type(loaded), loaded.noise) == (Saving, 0.3)
        assert loaded.trunk.init_args["name"] == "test_resnet"
        torch.testing.assert_close(loaded(images), learner.eval()(images))


def test_the_number_of_loader_processes_stays_on_its_machine(checkpoint):
    assert "batch_size" in checkpoint["datamodule_hyper_parameters"]
    assert "num_workers" not in checkpoint["datamodule_hyper_parameters"]


class Foreign(LightningDataModule):
    """Names of `MetricDataModule` with another meaning."""

    features = ("width", "height")

    def __init__(self, transforms: str = "flip") -> None:
        super().__init__()
        self.save_hyperparameters()
        self.identity, self.train_samples, self.dataset, self.fold, self.cache = "mine", 16, "letters", 3, {}

    def train_dataloader(self):
        labels = torch.arange(16) // 4
        return DataLoader(TensorDataset(torch.rand(16, 3, 32, 32), labels, torch.arange(16)), batch_size=16)

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
