"""A fork's own parts, plain modules each, through the command line: they train, come back, or one line says why not."""

import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch
import yaml
from deletable import EXPORT, needs
from refused import refused
from tiny_fit import TINY
from toy_study import TOY

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


def heated_loss(num_classes, embedding_size) -> WeightedLoss:
    return WeightedLoss(num_classes, embedding_size, scale=16.0)


class NeedyLoss(WeightedLoss):
    def __init__(self, num_classes, embedding_size, scale):
        super().__init__(num_classes, embedding_size, scale)


class AllPairs(nn.Module):
    def forward(self, embeddings, labels):
        same = labels[:, None] == labels[None]
        others = ~torch.eye(len(labels), dtype=torch.bool)
        return *(same & others).nonzero(as_tuple=True), *(~same).nonzero(as_tuple=True)


class SmallTrunk(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.num_features = width
        self.convolution = nn.Conv2d(3, width, 3, 2)

    def forward(self, images):
        return self.convolution(images).relu().mean((2, 3))


class LabelEmbedder(nn.Linear):
    def forward(self, features, labels):
        return super().forward(features)


class NarrowEmbedder(nn.Linear):
    def __init__(self, num_features, embedding_size):
        super().__init__(num_features, 7)


class LabelMiner(nn.Module):
    def forward(self, labels):
        return None


class PlainEmbedder(nn.Module):
    def __init__(self, num_features, embedding_size, bias=True):
        super().__init__()
        self.linear = nn.Linear(num_features, embedding_size, bias=bias)

    def forward(self, features):
        return self.linear(features)
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


ALL_OWN = [
    *("--model.loss", "plain_parts.PairsLoss", "--model.loss.margin", "0.3", "--model.miner", "plain_parts.AllPairs"),
    *("--model.trunk", "plain_parts.SmallTrunk", "--model.trunk.width", "12"),
    *("--model.embedder", "plain_parts.PlainEmbedder", "--model.embedder.bias", "false"),
    *("--trainer.callbacks", "plain_parts.Announcer", "--trainer.callbacks.word", "started"),
]


@pytest.fixture(scope="module")
def own(desk, tmp_path_factory):
    """What the fit of a method of one's own parts printed, and its checkpoint."""
    output = tmp_path_factory.mktemp("own")
    printed = io.StringIO()
    with redirect_stdout(printed):
        words = ["fit", *TINY, *ALL_OWN, "--data.dataset.num_classes", "24", "--trainer.max_epochs", "1"]
        assert main([*words, "--output", str(output)]) == 0
    return printed.getvalue(), output / "fit/Glyphs-PairsLoss/0/best.ckpt"


def test_plain_modules_train_and_come_back(own):
    printed, best = own
    assert f"next: levelfield validate --ckpt_path {best} --trust plain_parts\n" in printed
    learner = MetricLearner.load_from_checkpoint(best)
    assert "the fit has started\n" in printed
    assert "trunk: SmallTrunk, 12 features" in printed
    assert learner.loss.margin == 0.3
    assert learner.embedder.linear.weight.shape == (128, 12)
    assert learner.embedder.linear.bias is None
    assert learner(torch.rand(2, 3, 32, 32)).shape == (2, 128)


def test_a_function_makes_a_loss_of_the_number_of_classes(tiny, run, tmp_path):
    words = ["--model.loss", "plain_parts.heated_loss", "--trainer.max_epochs", "1", "--output", tmp_path]
    code, _, complaint = run("fit", *tiny, *words)
    assert code == 0, complaint
    learner = MetricLearner.load_from_checkpoint(tmp_path / "fit/Glyphs-heated_loss/0/best.ckpt")
    assert type(learner.loss).__name__ == "WeightedLoss"
    assert learner.loss.weights.shape == (15, 128)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["validate", "predict", pytest.param("export", marks=needs(EXPORT))])
def test_a_new_terminal_finds_ones_own_parts_where_it_stands(command, own, run, desk, tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "plain_parts", raising=False)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path and path != str(desk)])
    more = ["--output", tmp_path / "exported"] if command == "export" else []
    code, _, complaint = run(command, "--ckpt_path", own[1], "--trust", "plain_parts", *more)
    assert code == 0, complaint


@pytest.mark.full
def test_each_fold_of_a_study_gets_its_own_number_of_classes(run, tmp_path):
    study = yaml.safe_load(TOY)
    soft_triple = {"model": {"loss": "pytorch_metric_learning.losses.SoftTripleLoss"}}
    study |= {"folds": 3, "runs": 1, "methods": {"soft_triple": soft_triple}}
    del study["spaces"], study["search"]
    study["base"][0]["trainer"]["max_epochs"] = 1
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(study))
    words = ["study", "run", tmp_path / "toy.yaml", "--output", tmp_path / "toy"]
    code, _, complaint = run(*words, "--add-method", "plain_parts.WeightedLoss")
    assert code == 0, complaint
    # 16 of the 32 letters are for training, in blocks of 6, 5 and 5, each of which validates once.
    for method, name, centers in (("weighted_loss", "weights", 1), ("soft_triple", "fc", 10)):
        jobs = [tmp_path / "toy" / "jobs" / method / "run0" / f"fold{fold}" for fold in range(3)]
        weights = [torch.load(job / "best.ckpt", weights_only=True)["state_dict"][f"loss.{name}"] for job in jobs]
        assert [sorted(weight.shape) for weight in weights] == [sorted((16, n * centers)) for n in (10, 11, 11)]
    code, printed, complaint = run("validate", "--ckpt_path", jobs[1] / "best.ckpt")
    assert code == 0, complaint
    score = json.loads((jobs[1] / "result.json").read_text())["validation"]["map_at_r"]
    assert f"{score:.6f}"[:6] in printed


def test_short_names_are_ours_whatever_else_is_imported(tiny, run, tmp_path):
    import pytorch_metric_learning.losses  # has classes of the same names
    import pytorch_metric_learning.miners  # noqa: F401

    memory = ["--model.loss", "CrossBatchMemory", "--model.loss.loss", "ContrastiveLoss"]
    words = [*memory, "--model.loss.memory_size", "64", "--model.miner", "MultiSimilarityMiner"]
    code, printed, complaint = run("fit", *tiny, *words, "--print_config")
    assert code == 0, complaint
    config = yaml.safe_load(printed)["model"]
    assert config["loss"]["init_args"]["loss"]["class_path"] == "levelfield.losses.ContrastiveLoss"
    assert config["miner"]["class_path"] == "levelfield.miners.MultiSimilarityMiner"
    words = ["--model.loss", "P2SGradLoss", "--model.trunk", "CosineSimilarity", "--output", tmp_path]
    refused(run("fit", *tiny, *words), "'CosineSimilarity'", "torch.nn.CosineSimilarity")


KINDS = ["model.loss", "model.trunk", "model.embedder", "model.miner", "model.optimizer", "model.lr_scheduler"]
KINDS += ["data.dataset", "data.sampler", "data.transforms", "trainer.callbacks", "trainer.logger"]


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
    ],
)
def test_a_part_that_does_not_fit_is_one_line(options, key, tiny, run, tmp_path):
    refused(run("fit", *tiny, "--output", tmp_path, *options.split()), key)
