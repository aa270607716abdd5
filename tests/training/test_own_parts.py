"""A fork's own parts, plain modules each, through the command line: they train, come back, or one line says why not."""

import importlib
import io
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch
import yaml
from deletable import EXPORT, needs
from refused import refused, succeeded
from tiny_fit import TINY

from levelfield.cli.main import main
from levelfield.training.learner import MetricLearner

PARTS = (
    Path(__file__).with_name("weighted_loss.py").read_text()
    + """
from lightning.pytorch import Callback


class PairsLoss(nn.Module):
    def __init__(self, margin=0.5):
        super().__init__()
        self.margin = margin

    def forward(self, embeddings, labels, indices_tuple=None):
        a, p, b, n = indices_tuple
        pull = 1 - (embeddings[a] * embeddings[p]).sum(1)
        push = (embeddings[b] * embeddings[n]).sum(1) - self.margin
        return pull.mean() + push.clamp(min=0).mean()


class Announcer(Callback):
    def __init__(self, word="begun"):
        self.word = word

    def on_train_start(self, trainer, learner):
        print("the fit has", self.word)


class NeedyLoss(WeightedLoss):
    def __init__(self, num_classes, embedding_size, scale): ...


class AllPairs(nn.Module):
    def forward(self, embeddings, labels):
        same = labels[:, None] == labels[None]
        others = ~torch.eye(len(labels), dtype=torch.bool)
        return *(same & others).nonzero(as_tuple=True), *(~same).nonzero(as_tuple=True)


class SmallTrunk(nn.Sequential):
    def __init__(self, width=8):
        super().__init__(nn.Conv2d(3, width, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.num_features = width


class LabelEmbedder(nn.Linear):
    def forward(self, features, labels):
        return super().forward(features)


class NarrowEmbedder(nn.Linear):
    def __init__(self, num_features, embedding_size):
        super().__init__(num_features, 7)


class LabelMiner(nn.Module):
    def forward(self, labels): ...


class PlainEmbedder(nn.Linear):
    def __init__(self, num_features, embedding_size, bias=True):
        super().__init__(num_features, embedding_size, bias=bias)
"""
)


@pytest.fixture(scope="module", autouse=True)
def desk(tmp_path_factory):
    """A working directory with one's own modules, of which some cannot be imported."""
    folder = tmp_path_factory.mktemp("desk")
    (folder / "plain_parts.py").write_text(PARTS)
    (folder / "torn_parts.py").write_text("class A(:\n")
    (folder / "angry_parts.py").write_text("raise RuntimeError('not\\ntoday')\n")
    (folder / "needy_parts.py").write_text("import no_such_package\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [path for path in sys.path if path])
        patch.setattr(sys, "dont_write_bytecode", True)
        patch.chdir(folder)
        yield folder


PML = "pytorch_metric_learning"
ALL_OWN = [
    *("--model.loss", "plain_parts.PairsLoss", "--model.loss.margin", "0.3", "--model.miner", "plain_parts.AllPairs"),
    *("--model.trunk", "plain_parts.SmallTrunk", "--model.trunk.width", "12"),
    *("--model.embedder", "plain_parts.PlainEmbedder", "--model.embedder.bias", "false"),
    *("--trainer.callbacks", "plain_parts.Announcer", "--trainer.callbacks.word", "started"),
]


@pytest.fixture(scope="module")
def own(desk, tmp_path_factory):
    """What the fit of a method of one's own parts printed, and its checkpoint."""
    output, printed = tmp_path_factory.mktemp("own"), io.StringIO()
    words = ["fit", *TINY, *ALL_OWN, "--data.dataset.num_classes", "24", "--trainer.max_epochs", "1"]
    with redirect_stdout(printed):
        assert main([*words, "--output", str(output)]) == 0
    return printed.getvalue(), output / "fit/Glyphs-PairsLoss/0/best.ckpt"


def test_plain_modules_train_and_come_back(own, desk, monkeypatch):
    printed, best = own
    monkeypatch.syspath_prepend(desk)
    importlib.import_module("plain_parts")  # what is imported may be loaded
    assert f"next: levelfield validate --ckpt_path {best} --trust plain_parts\n" in printed
    learner = MetricLearner.load_from_checkpoint(best)
    assert "the fit has started\n" in printed
    assert "trunk: SmallTrunk, 12 features" in printed
    assert (learner.loss.margin, learner.embedder.bias) == (0.3, None)
    assert learner(torch.rand(2, 3, 32, 32)).shape == (2, 128)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["validate", "predict", pytest.param("export", marks=needs(EXPORT))])
def test_a_new_terminal_finds_ones_own_parts_where_it_stands(command, own, run, desk, tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "plain_parts", raising=False)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path and path != str(desk)])
    more = ["--output", tmp_path / "exported"] if command == "export" else []
    succeeded(run(command, "--ckpt_path", own[1], "--trust", "plain_parts", *more))


def test_short_names_are_ours_whatever_else_is_imported(tiny, run, tmp_path):
    import pytorch_metric_learning.losses  # has classes of the same names
    import pytorch_metric_learning.miners  # noqa: F401

    memory = ["--model.loss", "CrossBatchMemory", "--model.loss.loss", "ContrastiveLoss"]
    words = [*memory, "--model.loss.memory_size", "64", "--model.miner", "MultiSimilarityMiner"]
    printed = succeeded(run("fit", *tiny, *words, "--print_config"))
    config = yaml.safe_load(printed)["model"]
    assert config["loss"]["init_args"]["loss"]["class_path"] == "levelfield.losses.ContrastiveLoss"
    assert config["miner"]["class_path"] == "levelfield.miners.MultiSimilarityMiner"
    words = ["--model.loss", "P2SGradLoss", "--model.trunk", "CosineSimilarity", "--output", tmp_path]
    refused(run("fit", *tiny, *words), "--model.trunk", "torch.nn.CosineSimilarity")


KINDS = ["model.loss", "model.trunk", "model.optimizer", "data.dataset", "data.transforms", "trainer.callbacks"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_imported_is_one_line(kind, tiny, run, tmp_path):
    words = ["fit", *tiny, "--output", tmp_path, *([] if kind == "model.loss" else ["--model.loss", "ContrastiveLoss"])]
    refused(run(*words, f"--{kind}", "plain_parts.PairsLos"), f"levelfield: --{kind}: ", "'PairsLoss'")
    section, part = kind.split(".")
    config = {section: {part: {"class_path": "torn_parts.Part", "init_args": {"a": 1}}}}
    (tmp_path / "part.yaml").write_text(yaml.safe_dump(config))
    refused(run(*words, "--config", tmp_path / "part.yaml"), f"levelfield: --{kind}: ", "'torn_parts'")


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ("--model.loss needy_parts.Part", "'no_such_package'"),
        ("--model.loss angry_parts.Part", "'angry_parts'"),
        ("--model.loss no_such_parts.Part", "'no_such_parts'"),
        ("--model.loss plain_parts.NeedyLoss", "'scale'"),
        ("--model.loss plain_parts.WeightedLoss --model.loss.num_classes 3", "num_classes"),
        ("--model.loss ArcFaceLoss --model.loss.class_fraction 3", "ArcFaceLoss: class_fraction=3.0"),
        ("--model.loss plain_parts.SmallTrunk", "--model.loss SmallTrunk"),
        ("--model.loss plain_parts.WeightedLoss --model.miner plain_parts.AllPairs", "--model.miner AllPairs"),
        ("--model.loss ContrastiveLoss --model.trunk plain_parts.AllPairs", "num_features"),
        ("--model.loss ContrastiveLoss --model.embedder plain_parts.LabelEmbedder", "'labels'"),
        ("--model.loss ContrastiveLoss --model.embedder plain_parts.NarrowEmbedder", "(2, 7)"),
        ("--model.loss ContrastiveLoss --model.miner plain_parts.LabelMiner", "LabelMiner"),
        ("--model.loss ContrastiveLoss --model.regularizer KoLoe", "'KoLeo'"),
        ("--model.loss ContrastiveLoss --model.regularizer SphericalConstraint", "--model.normalize false"),
        ("--model.loss ContrastiveLoss --model.regularizer CenterInvariance", "--model.loss ContrastiveLoss"),
        ("--model.loss ContrastiveLoss --model.regularizer torch.nn.Identity", "--model.regularizer"),
        (f"--model.loss {PML}.losses.ContrastiveLoss --model.loss.distance {PML}.distances.LpDistance", "'distance'"),
    ],
)
def test_a_part_that_does_not_fit_is_one_line(options, key, tiny, run, tmp_path):
    refused(run("fit", *tiny, "--output", tmp_path, *options.split()), key)
