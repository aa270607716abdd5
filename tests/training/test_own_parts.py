"""A fork's own parts, learner or LightningModule at the commands: they train, come back, or one line says why not."""

import csv
import importlib
import io
import re
import shlex
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch
import yaml
from deletable import EXPORT, needs
from refused import refused, succeeded
from safetensors.torch import load_file
from tiny_fit import REPOSITORY, TINY

from levelfield.cli.main import main
from levelfield.study.rows import load_spec
from levelfield.study.same_study import row_sources
from levelfield.training.learner import MetricLearner

PAGE = (REPOSITORY / "docs" / "own_parts.md").read_text()
LEARNER, *_ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
FIT = shlex.split(re.findall(r"^    levelfield (fit .*NoisyLearner.*)", PAGE, re.MULTILINE)[0])
VALIDATE = shlex.split("validate --ckpt_path outputs/fit/Glyphs-ContrastiveLoss/0/best.ckpt --trust my_learner")
PARTS = """
from lightning.pytorch import Callback
from levelfield.training.learner import MetricLearner
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
class PlainEmbedder(nn.Linear): ...
class LabelEmbedder(nn.Linear):
    def forward(self, features, labels): ...
class NarrowEmbedder(nn.Linear):
    def __init__(self, num_features, embedding_size):
        super().__init__(num_features, 7)
class LabelMiner(nn.Module):
    def forward(self, labels): ...
class Narrow(MetricLearner):
    def __init__(self, trunk, loss):
        super().__init__(trunk, loss)
"""
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
class Silent(Plain):
    def validation_step(self, batch, batch_idx):
        self.log("val_loss", 0.0)
"""
)
PLAIN_FIT = "--config data/glyphs.yaml --data.dataset.num_classes 24 --data.steps_per_epoch 6 --trainer.max_epochs 2 "
PLAIN_FIT += "--data.transforms.crop_size 32 --data.transforms.resize 32 --trainer.enable_progress_bar false"
ALL_OWN = "--model.loss plain_parts.PairsLoss --model.loss.margin 0.3 --model.miner plain_parts.AllPairs "
ALL_OWN += "--model.trunk plain_parts.SmallTrunk --model.trunk.width 12 --model.embedder plain_parts.PlainEmbedder "
ALL_OWN += "--model.embedder.bias false --trainer.callbacks plain_parts.Announcer --trainer.callbacks.word started"


@pytest.fixture(scope="module", autouse=True)
def desk(tmp_path_factory):
    """A working directory with one's own modules, of which some cannot be imported."""
    folder = tmp_path_factory.mktemp("desk")
    parts = Path(__file__).with_name("weighted_loss.py").read_text() + PARTS
    files = {"my_learner": LEARNER, "plainly": MODULE, "plain_parts": parts, "needy_parts": "import no_such_package\n"}
    files |= {"torn_parts": "class A(:\n", "angry_parts": "raise RuntimeError('not\\ntoday')\n"}
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [path for path in sys.path if path])
        patch.setattr(sys, "dont_write_bytecode", True)
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="module")
def own(desk, tmp_path_factory):
    """What the fit of a method of one's own parts printed, and its checkpoint."""
    output, printed = tmp_path_factory.mktemp("own"), io.StringIO()
    words = ["fit", *TINY, *ALL_OWN.split(), "--data.dataset.num_classes", "24", "--trainer.max_epochs", "1"]
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


def test_the_page_s_learner_fits_and_comes_back(desk, tiny, run, monkeypatch):
    monkeypatch.syspath_prepend(desk)
    printed = succeeded(run(*FIT, *tiny, "--trainer.max_epochs", "1"))
    assert f"next: levelfield {shlex.join(VALIDATE)}\n" in printed
    best = desk / VALIDATE[VALIDATE.index("--ckpt_path") + 1]
    arguments = torch.load(best, weights_only=True)["hyper_parameters"]
    assert (arguments["learner"], arguments["noise"]) == ("my_learner.NoisyLearner", 0.2)
    learner = MetricLearner.load_from_checkpoint(best)
    assert (type(learner).__name__, learner.noise) == ("NoisyLearner", 0.2)
    embeddings, labels = torch.eye(8)[torch.arange(8) // 2], torch.arange(8) // 2
    assert float(learner.compute_loss(embeddings, labels)) > 0 == float(learner.loss(embeddings, labels)), "its step"
    assert run(*VALIDATE, "--model", "plain_parts.Narrow")[0] == 2
    del sys.modules["my_learner"]  # as in another process
    refused(run(*[word for word in VALIDATE if word not in ("--trust", "my_learner")]), "--trust my_learner")
    assert "my_learner" not in sys.modules, "nothing was imported"
    succeeded(run(*VALIDATE))
    refused(run(*VALIDATE, "--model.noise", "0.3"), "--model.noise")


def test_an_option_gives_a_learner_to_every_method_and_its_source_is_part_of_them(toy_file, desk, run, monkeypatch):
    monkeypatch.syspath_prepend(desk)
    refused(run("study", "run", toy_file, "--model", "plain_parts.Narrow", "--output", "never"), "Narrow", "embedder")
    plain, spec = load_spec(toy_file), load_spec(toy_file, {"model.learner": "my_learner.NoisyLearner"})
    sources = row_sources(spec)
    for method in plain.methods:
        assert "my_learner.py" in {Path(file).name for file in sources[method]}
        assert spec.row_hashes[method] != plain.row_hashes[method]


def test_short_names_are_ours_whatever_else_is_imported(tiny, run):
    import pytorch_metric_learning.losses  # has classes of the same names
    import pytorch_metric_learning.miners  # noqa: F401

    memory = ["--model.loss", "CrossBatchMemory", "--model.loss.loss", "ContrastiveLoss"]
    words = [*memory, "--model.loss.memory_size", "64", "--model.miner", "MultiSimilarityMiner"]
    config = yaml.safe_load(succeeded(run("fit", *tiny, *words, "--print_config")))["model"]
    assert config["loss"]["init_args"]["loss"]["class_path"] == "levelfield.losses.ContrastiveLoss"
    assert config["miner"]["class_path"] == "levelfield.miners.MultiSimilarityMiner"


PML = "pytorch_metric_learning"
CONTRASTIVE, PLAIN = "--model.loss ContrastiveLoss", "--model plainly.Plain"
KINDS = ["model.loss", "model.trunk", "model.optimizer", "data.dataset", "data.transforms", "trainer.callbacks"]
MISFITS = [
    *((f"{CONTRASTIVE} --{kind} plain_parts.PairsLos", [f"levelfield: --{kind}: ", "'PairsLoss'"]) for kind in KINDS),
    *((f"{CONTRASTIVE} --{kind} torn_parts.Part", [f"levelfield: --{kind}: ", "'torn_parts'"]) for kind in KINDS),
    ("--model.loss needy_parts.Part", ["'no_such_package'"]),
    ("--model.loss angry_parts.Part", ["'angry_parts'"]),
    ("--model.loss plain_parts.NeedyLoss", ["'scale'"]),
    ("--model.loss plain_parts.WeightedLoss --model.loss.num_classes 3", ["num_classes"]),
    ("--model.loss ArcFaceLoss --model.loss.class_fraction 3", ["ArcFaceLoss: class_fraction=3.0"]),
    ("--model.loss plain_parts.SmallTrunk", ["--model.loss SmallTrunk"]),
    ("--model.loss plain_parts.WeightedLoss --model.miner plain_parts.AllPairs", ["--model.miner AllPairs"]),
    ("--model.loss P2SGradLoss --model.trunk CosineSimilarity", ["--model.trunk", "torch.nn.CosineSimilarity"]),
    (f"{CONTRASTIVE} --model.trunk plain_parts.AllPairs", ["num_features"]),
    (f"{CONTRASTIVE} --model.embedder plain_parts.LabelEmbedder", ["'labels'"]),
    (f"{CONTRASTIVE} --model.embedder plain_parts.NarrowEmbedder", ["(2, 7)"]),
    (f"{CONTRASTIVE} --model.miner plain_parts.LabelMiner", ["LabelMiner"]),
    (f"{CONTRASTIVE} --model.regularizer SphericalConstraint", ["--model.normalize false"]),
    (f"{CONTRASTIVE} --model.regularizer CenterInvariance", ["--model.loss ContrastiveLoss"]),
    (f"{CONTRASTIVE} --model.regularizer torch.nn.Identity", ["--model.regularizer"]),
    (f"--model.loss {PML}.losses.ContrastiveLoss --model.loss.distance {PML}.distances.LpDistance", ["'distance'"]),
    (f"{CONTRASTIVE} --model NoisyLearner", ["--model NoisyLearner", "my_module.NoisyLearner"]),
    (f"{CONTRASTIVE} --model torch.nn.Linear", ["--model torch.nn.Linear", "extends MetricLearner"]),
    (f"{CONTRASTIVE} --model pathlib.Path", ["--model pathlib.Path", "LightningModule"]),
    (f"{CONTRASTIVE} --model plain_parts.Narrow", ["Narrow", "distance, embedder, embedder_init, ..."]),
    (f"{PLAIN} --model.widht 3", ["--model.widht", "'--model.width'"]),
    (f"{PLAIN} --data.features true", ["--data.features"]),
    (f"{PLAIN} --trainer.callbacks+ HeadFirst", ["--trainer.callbacks HeadFirst", "Plain"]),
    (f"{PLAIN} --trainer.callbacks+ GradientCaching --trainer.callbacks.chunk_size 4", ["GradientCaching", "Plain"]),
    ("--model plainly.Plian", ["plainly", "'Plain'"]),
    ("--model plainly.Silent", ["validation_step", "NoneType"]),
]


@pytest.mark.parametrize(("options", "keys"), MISFITS, ids=lambda it: it if isinstance(it, str) else "")
def test_a_part_that_does_not_fit_is_one_line(options, keys, tiny, run, tmp_path):
    base = PLAIN_FIT.split() if "plainly" in options else tiny
    refused(run("fit", *base, "--output", tmp_path, *options.split()), *keys)


def test_a_plain_module_is_fitted_validated_tested_and_predicts(run, desk):
    printed = succeeded(run("fit", *PLAIN_FIT.split(), "--model", "plainly.Both", "--model.width", "12"))
    assert "--trust plainly" in printed
    folder = desk / "outputs/fit/Glyphs-Both/0"
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


def test_a_plain_module_starts_from_a_checkpoint(run, desk):
    short = ["--trainer.max_epochs", "1", "--data.steps_per_epoch", "2"]

    def fitted(*words, name):
        succeeded(run("fit", *PLAIN_FIT.split(), *short, "--name", name, *words))
        return desk / "outputs/fit" / name / "0/best.ckpt"

    first = fitted("--model", "plainly.Plain", name="first")
    usual = fitted("--config", "trunk/tiny.yaml", "--model.loss", "ContrastiveLoss", name="usual")
    expected = torch.load(first, weights_only=True)["state_dict"]
    still = ["--model", "plainly.Both", "--model.lr", "0", "--seed_everything", "3"]
    found = torch.load(fitted(*still, "--ckpt_path", first, name="still"), weights_only=True)["state_dict"]
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    for checkpoint, *more in ((first, "--model.width", "8"), (usual,)):
        words = ["--model", "plainly.Plain", "--ckpt_path", checkpoint, *more]
        refused(run("fit", *PLAIN_FIT.split(), *words), checkpoint.name)
