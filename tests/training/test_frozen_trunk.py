"""A frozen trunk: it never changes nor learns, a study keeps it once, and its features train as its images do."""

import shutil
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback
from own_images import noise_images
from refused import refused, succeeded
from small_fit import small_config, small_data, small_learner, small_trainer
from tiny_text import own_texts, tiny_text_model
from torch.optim.lr_scheduler import StepLR

from levelfield.core.errors import UserError
from levelfield.data import ImageTable, ImageTransforms, TextTable
from levelfield.data.datamodule import MetricDataModule
from levelfield.data.datasets import Glyphs
from levelfield.losses import ArcFaceLoss, ContrastiveLoss
from levelfield.models import IdentityEmbedder, MLPEmbedder, TimmTrunk, TransformersTrunk
from levelfield.training.build import Training
from levelfield.training.callbacks import HeadFirst
from levelfield.training.embed import embed
from levelfield.training.learner import MetricLearner

pytestmark = pytest.mark.usefixtures("quiet")

# A training image is what an evaluation image is.
FIXED = {"crop_size": 32, "resize": 32, "square": True, "random_crop": True, "horizontal_flip": False}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEVELFIELD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def files(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.glob("features/*.f32"))


def learner_of(trunk=None, loss=ArcFaceLoss, **arguments) -> MetricLearner:
    settings = {"freeze_trunk": True, "embedder": MLPEmbedder, **({"trunk": trunk} if trunk else {}), **arguments}
    return small_learner(loss, **settings)


def changed(by: float) -> MetricLearner:
    learner = learner_of()
    with torch.no_grad():
        next(learner.trunk.parameters()).add_(by)
    return learner


def letters(features: bool, transforms=FIXED, **arguments) -> MetricDataModule:
    settings = {"batch_size": 16, "steps_per_epoch": 3, "transforms": ImageTransforms(**transforms), **arguments}
    return small_data(24, features=features, **settings)


def fit(learner: MetricLearner, data: MetricDataModule) -> float:
    trainer = small_trainer(max_epochs=2)
    torch.manual_seed(1)  # of class weights
    trainer.fit(learner, datamodule=data)
    return float(trainer.callback_metrics["val/map_at_r"])


def embedded(learner: MetricLearner, data: MetricDataModule):
    data.setup("validate")
    return embed(learner, data.eval_dataloader(data.val_subset))


def assert_same_head(one: MetricLearner, other: MetricLearner) -> None:
    for name, value in one.state_dict().items():
        if torch.is_tensor(value):
            torch.testing.assert_close(other.state_dict()[name], value, rtol=0, atol=1e-5)


def test_the_features_of_images_are_training_through_the_trunk_and_its_learner_embeds_images():
    through, on_features, data = learner_of(), learner_of(), letters(True)
    score = fit(through, letters(False))
    assert fit(on_features, data) == pytest.approx(score, abs=1e-5)
    assert_same_head(through, on_features)
    assert not torch.allclose(learner_of().embedder.layers[0].weight, through.embedder.layers[0].weight)
    images, features = embedded(on_features, letters(False)), embedded(on_features, data)
    torch.testing.assert_close(features.embeddings, images.embeddings, atol=1e-5, rtol=0)
    assert torch.equal(features.labels, images.labels)
    assert torch.equal(features.index, images.index)
    found = on_features.embed_features(data.evaluated(data.val_subset))
    torch.testing.assert_close(found, images.embeddings, atol=1e-5, rtol=0)


def test_the_features_of_texts_are_training_through_the_trunk(tmp_path: Path):
    trunk = TransformersTrunk(str(tiny_text_model(tmp_path / "model")), weights=None, max_length=60)
    given = {"dataset": TextTable(own_texts(tmp_path)), "batch_size": 8, "steps_per_epoch": 2, "eval_batch_size": 5}
    through, on_features = (learner_of(trunk, ContrastiveLoss) for _ in range(2))
    score = fit(through, MetricDataModule(**given))
    assert fit(on_features, MetricDataModule(**given, features=True)) == pytest.approx(score, abs=1e-5)
    assert_same_head(through, on_features)


def test_folds_seeds_augmentations_and_methods_share_a_file_and_open_no_image(cache: Path, monkeypatch):
    fit(learner_of(), letters(True))
    (made,) = files(cache)
    monkeypatch.setattr(Glyphs, "load", lambda *_: pytest.fail("opened an image"))
    monkeypatch.setattr(TimmTrunk, "forward", lambda *_: pytest.fail("ran the trunk"))
    other = {**FIXED, "scale": (0.5, 1.0), "horizontal_flip": True}
    fit(learner_of(loss=ContrastiveLoss), letters(True, other, fold=2, seed=5))
    assert files(cache) == [made]


def test_other_weights_or_images_have_another_file(cache: Path):
    fit(learner_of(), letters(True))
    fit(changed(1e-3), letters(True))
    assert len(files(cache)) == 2
    for number, other in ((3, {"crop_size": 28}), (4, {"eval_resize": 40}), (4, {"resize": 36, "eval_resize": 32})):
        fit(learner_of(), letters(True, {**FIXED, **other}))
        assert len(files(cache)) == number, other  # the last is evaluated as the first


def test_one_datamodule_follows_the_learner_that_it_is_given():
    data, other = letters(True), changed(0.1)
    fit(learner_of(), data)
    before = data.evaluated(data.val_subset).clone()
    fit(other, data)
    expected = embedded(other.trunk, letters(False)).embeddings
    assert not torch.allclose(before, expected, atol=1e-3)
    torch.testing.assert_close(data.evaluated(data.val_subset), expected, atol=1e-5, rtol=0)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """16 classes of 4 pictures of noise."""
    return noise_images(tmp_path, 64, samples=4, height=32, width=32, suffix=".png")


def pictures(table: Path) -> MetricDataModule:
    given = {"transforms": ImageTransforms(**FIXED), "batch_size": 8, "steps_per_epoch": 1, "features": True}
    return MetricDataModule(ImageTable(table), **given)


def test_the_test_half_is_read_after_the_ledger_has_its_line(table: Path, cache: Path, monkeypatch):
    learner, data, trainer = learner_of(), pictures(table), small_trainer(default_root_dir=table.parent)
    trainer.fit(learner, datamodule=data)
    ledger, load, opened = table.parent / "ledger.jsonl", ImageTable.load, []
    half = files(cache)

    def watched(self, key):
        opened.append(ledger.exists())
        return load(self, key)

    monkeypatch.setattr(ImageTable, "load", watched)
    trainer.test(learner, datamodule=data, verbose=False)
    assert opened == [True] * 32
    assert len(files(cache)) == len(half) + 1


class OwnForward(MetricLearner):
    """Somebody's learner, which looks at the images."""

    def forward(self, samples):
        return super().forward(samples.flip(-1))


def test_what_cannot_be_trained_on_features_is_refused(tmp_path: Path, tiny, run):
    with pytest.raises(UserError, match="OwnForward"):
        fit(small_learner(ArcFaceLoss, OwnForward, freeze_trunk=True), letters(True))
    words = ["--model.loss", "ArcFaceLoss", "--data.features", "true", "--output", tmp_path]
    refused(run("fit", *tiny, *words), "--model.freeze_trunk true")


def test_the_commands_train_on_features_and_embed_images(tiny, run, cache: Path, tmp_path: Path):
    words = ["--model.loss", "ArcFaceLoss", "--model.freeze_trunk", "true", "--data.features", "true"]
    small = ["--data.dataset.num_classes", "24", "--output", tmp_path, "--name", "it"]
    succeeded(run("fit", *tiny, *words, *small))
    checkpoint = ["--ckpt_path", tmp_path / "fit/it/0/best.ckpt"]
    (made,) = files(cache)
    printed = [succeeded(run("validate", *checkpoint, *more)) for more in ([], ["--data.features", "false"])]
    one, other = ([line for line in each.splitlines() if "map_at_r" in line] for each in printed)
    assert one == other
    assert files(cache) == [made]
    for command, count in (("predict", 1), ("test", 2)):
        succeeded(run(command, *checkpoint))
        assert len(files(cache)) == count


class Watching(Callback):
    """What the trunk is like at each step."""

    def __init__(self) -> None:
        self.training, self.gradients, self.groups, self.rates = set(), set(), [], []

    def on_before_optimizer_step(self, trainer, learner, optimizer) -> None:
        self.training |= {module.training for module in learner.trunk.modules()}
        self.gradients |= {parameter.grad is not None for parameter in learner.trunk.parameters()}
        self.groups = [group["name"] for group in optimizer.param_groups]
        self.rates.append(optimizer.param_groups[0]["lr"])


@pytest.mark.parametrize("freeze_batch_norm", [True, False])
def test_the_trunk_stays_as_it_is_and_the_head_learns(freeze_batch_norm: bool):
    given = {"freeze_batch_norm": freeze_batch_norm, "lr_scheduler": lambda o: StepLR(o, 1)}
    learner = small_learner(ArcFaceLoss, freeze_trunk=True, **given)
    outputs = []
    learner.trunk.register_forward_hook(lambda *call: outputs.append(call[-1].requires_grad))
    before = {name: value.clone() for name, value in learner.state_dict().items()}
    watching = Watching()
    trainer = small_trainer(HeadFirst(1), watching, limit_val_batches=0)
    trainer.fit(learner, datamodule=small_data(batch_size=8, steps_per_epoch=3))
    after = learner.state_dict()
    same = {name.partition(".")[0] for name, value in before.items() if torch.equal(value, after[name])}
    assert same == {"trunk"}
    assert (watching.training, watching.gradients, set(outputs)) == ({False}, {False}, {False})
    assert watching.groups == ["embedder", "loss"]
    assert watching.rates == [1e-3, 1e-3, 1e-3]


def test_nothing_that_learns_is_refused():
    with pytest.raises(UserError, match=r"--model\.freeze_trunk"):
        small_learner(freeze_trunk=True, embedder=IdentityEmbedder, embedding_size=96).configure_optimizers()


@pytest.fixture(scope="module")
def jobs(tmp_path_factory) -> list[Path]:
    """Two jobs of a study on a frozen trunk and one on another, in a folder that was moved after they ended."""
    folder = tmp_path_factory.mktemp("studies")
    for name, seed in (("a", 0), ("b", 0), ("other", 1)):
        config = small_config(model={"loss": "ArcFaceLoss", "freeze_trunk": True}, data={"steps_per_epoch": 1}) | {
            "seed_everything": seed
        }
        training = Training(config, folder / "before" / name, trunks=folder / "before/trunks").build()
        training.trainer.fit(training.model, datamodule=training.datamodule)
        torch.save(training.model.trunk.state_dict(), folder / f"{name}.pt")
    shutil.move(folder / "before", folder / "moved")
    return [folder / "moved" / name for name in ("a", "b", "other")]


def test_jobs_keep_a_trunk_once_and_embed_after_their_study_has_moved(jobs: list[Path]):
    assert len([*(jobs[0].parent / "trunks").iterdir()]) == 2
    for job in jobs:
        state = torch.load(job / "best.ckpt", weights_only=True)["state_dict"]
        assert {name.partition(".")[0] for name in state} == {"embedder", "loss"}
        learner = MetricLearner.load_from_checkpoint(job / "best.ckpt")
        assert learner.freeze_trunk
        trunk = torch.load(jobs[0].parent.parent / f"{job.name}.pt", weights_only=True)
        assert all(torch.equal(learner.trunk.state_dict()[name], value) for name, value in trunk.items())


def test_a_missing_or_changed_trunk_is_named(jobs: list[Path], tmp_path: Path):
    alone = tmp_path / "best.ckpt"
    shutil.copy(jobs[0] / "best.ckpt", alone)
    with pytest.raises(UserError, match=f"{tmp_path}/trunks/") as raised:
        MetricLearner.load_from_checkpoint(alone)
    found = MetricLearner.load_from_checkpoint(jobs[0] / "best.ckpt")
    images = torch.rand(3, 3, 32, 32)
    given = MetricLearner.load_from_checkpoint(alone, trunk=found.trunk)
    torch.testing.assert_close(given(images), found(images))
    (kept,) = [path for path in (jobs[0].parent / "trunks").iterdir() if path.name in str(raised.value)]
    content = torch.load(kept, weights_only=True)
    next(iter(content.values()))[0] += 1
    (tmp_path / "trunks").mkdir()
    torch.save(content, tmp_path / "trunks" / kept.name)
    with pytest.raises(UserError, match=kept.name):
        MetricLearner.load_from_checkpoint(alone)


def test_a_fit_is_one_file_that_loads_alone(tiny, run, tmp_path: Path):
    words = [*tiny, "--model.loss", "ArcFaceLoss", "--model.freeze_trunk", "true", "--output", tmp_path, "--name", "it"]
    succeeded(run("fit", *words))
    shutil.copy(tmp_path / "fit/it/0/best.ckpt", tmp_path / "alone.ckpt")
    shutil.rmtree(tmp_path / "fit")
    assert MetricLearner.load_from_checkpoint(tmp_path / "alone.ckpt").freeze_trunk
    # Embedder and loss first, then all.
    succeeded(run("fit", *words, "--ckpt_path", tmp_path / "alone.ckpt", "--model.freeze_trunk", "false"))
