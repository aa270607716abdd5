"""A frozen trunk: it never changes nor learns, and a study keeps it once."""

import shutil
from pathlib import Path

import pytest
import torch
import yaml
from lightning.pytorch import Callback
from small_fit import small_data, small_learner, small_trainer, small_trunk
from torch import nn
from torch.optim.lr_scheduler import StepLR
from toy_study import run_study

from levelfield.errors import UserError
from levelfield.losses import ArcFaceLoss
from levelfield.models import IdentityEmbedder, TimmTrunk
from levelfield.study.rows import load_spec
from levelfield.training.callbacks import NewWeightsFirst
from levelfield.training.frozen_trunk import trunk_hash
from levelfield.training.learner import MetricLearner

pytestmark = pytest.mark.usefixtures("quiet")


class Watching(Callback):
    """What the trunk is like at each step."""

    def __init__(self) -> None:
        self.training, self.gradients, self.groups, self.rates = set(), set(), [], []

    def on_before_optimizer_step(self, trainer, learner, optimizer) -> None:
        self.training |= {module.training for module in learner.trunk.modules()}
        self.gradients |= {parameter.grad is not None for parameter in learner.trunk.parameters()}
        self.groups = [group["name"] for group in optimizer.param_groups]
        self.rates.append(optimizer.param_groups[0]["lr"])


def fit(learner: MetricLearner, *callbacks: Callback) -> None:
    small_trainer(*callbacks, limit_val_batches=0).fit(learner, datamodule=small_data(batch_size=8, steps_per_epoch=3))


@pytest.mark.parametrize("freeze_batch_norm", [True, False])
def test_the_trunk_stays_as_it_is_and_the_head_learns(freeze_batch_norm: bool):
    given = {"freeze_batch_norm": freeze_batch_norm, "lr_scheduler": lambda o: StepLR(o, 1)}
    learner = small_learner(ArcFaceLoss, freeze_trunk=True, **given)
    outputs = []
    learner.trunk.register_forward_hook(lambda *call: outputs.append(call[-1].requires_grad))
    before = {name: value.clone() for name, value in learner.state_dict().items()}
    watching = Watching()
    fit(learner, NewWeightsFirst(1), watching)
    after = learner.state_dict()
    same = {name.partition(".")[0] for name, value in before.items() if torch.equal(value, after[name])}
    assert same == {"trunk"}
    assert (watching.training, watching.gradients, set(outputs)) == ({False}, {False}, {False})
    assert watching.groups == ["embedder", "loss"]
    assert watching.rates == [1e-3, 1e-3, 1e-3]


def test_nothing_that_learns_is_refused():
    with pytest.raises(UserError, match=r"--model\.freeze_trunk"):
        fit(small_learner(freeze_trunk=True, embedder=IdentityEmbedder, embedding_size=96))


def test_the_hash_follows_the_weights():
    trunk, other = (small_trunk() for _ in range(2))
    first = trunk_hash(trunk)
    assert trunk_hash(other) != first
    other.load_state_dict(trunk.state_dict())
    assert trunk_hash(other) == first
    next(trunk.buffers()).add_(1)
    assert trunk_hash(trunk) != first


def study_file(toy_file: Path, trunk_file: Path, folder: Path) -> Path:
    """The toy study on a frozen trunk with weights of a file."""
    content = yaml.safe_load(toy_file.read_text())
    content["base"][0]["model"]["trunk"]["init_args"]["weights"] = str(trunk_file)
    content["base"][0]["model"]["freeze_trunk"] = True
    del content["spaces"], content["search"]
    content["runs"] = 1
    path = folder / "frozen.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture(scope="module")
def frozen_study(toy_file: Path, trunk_file: Path, tmp_path_factory) -> Path:
    """A study on a frozen trunk, moved after it ended."""
    folder = tmp_path_factory.mktemp("studies")
    run_study(folder / "before", load_spec(study_file(toy_file, trunk_file, folder)))
    shutil.move(folder / "before", folder / "moved")
    return folder / "moved"


def checkpoint_of(study: Path) -> Path:
    return study / "jobs/arcface/run0/fold1/best.ckpt"


def test_a_study_keeps_the_trunk_once(frozen_study: Path, trunk_file: Path):
    checkpoints = list(frozen_study.glob("jobs/*/*/*/best.ckpt"))
    assert len(checkpoints) == 4
    for path in checkpoints:
        state = torch.load(path, weights_only=True)["state_dict"]
        assert {name.partition(".")[0] for name in state} <= {"embedder", "loss"}
    (kept,) = (frozen_study / "trunks").iterdir()
    content, given = torch.load(kept, weights_only=True), torch.load(trunk_file, weights_only=True)
    assert all(torch.equal(content[f"model.{name}"], value) for name, value in given.items())


def test_a_checkpoint_of_a_moved_study_embeds(frozen_study: Path, trunk_file: Path):
    learner = MetricLearner.load_from_checkpoint(checkpoint_of(frozen_study))
    trunk = TimmTrunk("test_resnet", weights=str(trunk_file)).eval()
    images = torch.rand(3, 3, 32, 32)
    with torch.no_grad():
        expected = nn.functional.normalize(learner.embedder(trunk(images)))
        torch.testing.assert_close(learner(images), expected)
    assert learner.freeze_trunk


def test_the_command_takes_such_a_checkpoint(frozen_study: Path, run):
    checkpoint = checkpoint_of(frozen_study)
    code, printed, complaint = run("validate", "--ckpt_path", checkpoint)
    assert code == 0, complaint
    score = yaml.safe_load((checkpoint.parent / "result.json").read_text())["validation"]["map_at_r"]
    assert str(score) in (checkpoint.parent / "metrics.csv").read_text()
    shown = next(line for line in printed.splitlines() if "val/map_at_r" in line)
    assert float(shown.split()[3]) == pytest.approx(score, abs=1e-6)


def test_a_missing_or_changed_trunk_is_named(frozen_study: Path, trunk_file: Path, tmp_path: Path):
    alone = tmp_path / "best.ckpt"
    shutil.copy(checkpoint_of(frozen_study), alone)
    (kept,) = (frozen_study / "trunks").iterdir()
    with pytest.raises(UserError, match=f"{tmp_path}/trunks/{kept.name}"):
        MetricLearner.load_from_checkpoint(alone)
    given = MetricLearner.load_from_checkpoint(alone, trunk=TimmTrunk("test_resnet", weights=str(trunk_file)))
    (tmp_path / "trunks").mkdir()
    shutil.copy(kept, tmp_path / "trunks")
    found = MetricLearner.load_from_checkpoint(alone)
    images = torch.rand(3, 3, 32, 32)
    torch.testing.assert_close(found(images), given(images))
    content = torch.load(kept, weights_only=True)
    next(iter(content.values()))[0] += 1
    torch.save(content, tmp_path / "trunks" / kept.name)
    with pytest.raises(UserError, match=kept.name):
        MetricLearner.load_from_checkpoint(alone)


def test_a_fit_is_one_file_that_loads_alone(tiny, run, tmp_path: Path):
    words = [*tiny, "--model.loss", "ArcFaceLoss", "--model.freeze_trunk", "true", "--output", tmp_path, "--name", "it"]
    code, _, complaint = run("fit", *words)
    assert code == 0, complaint
    shutil.copy(tmp_path / "fit/it/0/best.ckpt", tmp_path / "alone.ckpt")
    shutil.rmtree(tmp_path / "fit")
    assert MetricLearner.load_from_checkpoint(tmp_path / "alone.ckpt").freeze_trunk
    code, _, complaint = run("fit", *words, "--ckpt_path", tmp_path / "alone.ckpt", "--model.freeze_trunk", "false")
    assert code == 0, complaint  # embedder and loss first, then all
