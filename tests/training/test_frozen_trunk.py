"""A trunk that stays as it is, frozen or but for an adapter: a study keeps it once, its features train as images do."""

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import timm
import torch
from deletable import EXPORT, needs
from lightning.pytorch.callbacks import LambdaCallback
from PIL import Image
from refused import refused, succeeded
from small_fit import small_config, small_data, small_learner, small_trainer
from tiny_fit import TINY
from tiny_text import own_texts, tiny_text_model
from torch.nn.functional import normalize
from torch.optim.lr_scheduler import StepLR

import levelfield
from levelfield.cli.main import main
from levelfield.core.errors import UserError
from levelfield.data import ImageTransforms, TextTable
from levelfield.data.datamodule import MetricDataModule
from levelfield.data.datasets import Glyphs
from levelfield.losses import ArcFaceLoss, ContrastiveLoss
from levelfield.models import IdentityEmbedder, MLPEmbedder, TimmTrunk, TransformersTrunk
from levelfield.models.adapters import WEIGHTS
from levelfield.training.build import Training
from levelfield.training.callbacks import HeadFirst
from levelfield.training.embed import embed
from levelfield.training.frozen_trunk import KEY
from levelfield.training.learner import MetricLearner

pytestmark = pytest.mark.usefixtures("quiet")

# A training image is what an evaluation image is.
FIXED = {"crop_size": 32, "resize": 32, "square": True, "random_crop": True, "horizontal_flip": False}
LORA = {"class_path": "LoRA", "init_args": {"rank": 1, "target_modules": ["conv1.3"]}}
ADAPTED = {"class_path": "TimmTrunk", "init_args": {"name": "test_resnet", "weights": None, "adapter": LORA}}
JOBS: dict[str, tuple[int, dict[str, Any]]] = {
    "lora": (0, {"trunk": ADAPTED, "trunk_lr": 0.1, "freeze_batch_norm": False}),
    "a": (0, {"freeze_trunk": True}),
    "b": (0, {"freeze_trunk": True}),
    "other": (1, {"freeze_trunk": True}),
}
OPTIONS = "--model.trunk.name test_vit --model.trunk.arguments '{depth: 2, img_size: 32}' --model.loss ContrastiveLoss "
OPTIONS += "--model.trunk.adapter LoRA --model.trunk.adapter.rank 2 --trainer.callbacks+ GradientCheckpointing"


@pytest.fixture(autouse=True)
def features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], set[Path]]:
    """Gives the files of features."""
    monkeypatch.setenv("LEVELFIELD_CACHE", str(tmp_path / "cache"))
    return lambda: set(tmp_path.glob("cache/features/*.f32"))


def learner_of(trunk=None, loss=ArcFaceLoss) -> MetricLearner:
    return small_learner(loss, freeze_trunk=True, embedder=MLPEmbedder, **({"trunk": trunk} if trunk else {}))


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


def trained(trunk: Any, images: MetricDataModule, features: MetricDataModule) -> tuple[MetricLearner, MetricLearner]:
    """Through the trunk and on its features: the same score and weights."""
    through, on_features = (learner_of(trunk) for _ in range(2))
    assert fit(on_features, features) == pytest.approx(fit(through, images), abs=1e-5)
    torch.testing.assert_close(
        dict(on_features.named_parameters()), dict(through.named_parameters()), rtol=0, atol=1e-5
    )
    return through, on_features


def test_the_features_of_images_are_training_through_the_trunk_and_its_learner_embeds_images():
    data = letters(True)
    through, on_features = trained(None, letters(False), data)
    assert not torch.allclose(learner_of().embedder.layers[0].weight, through.embedder.layers[0].weight)
    images, features = embedded(on_features, letters(False)), embedded(on_features, data)
    torch.testing.assert_close(features, images, atol=1e-5, rtol=0)
    found = on_features.embed_features(data.evaluated(data.val_subset))
    torch.testing.assert_close(found, images.embeddings, atol=1e-5, rtol=0)


def test_the_features_of_texts_are_training_through_the_trunk(tmp_path: Path):
    trunk = TransformersTrunk(str(tiny_text_model(tmp_path / "model")), weights=None, max_length=60)
    given = {"dataset": TextTable(own_texts(tmp_path)), "batch_size": 8, "steps_per_epoch": 2, "eval_batch_size": 5}
    trained(trunk, MetricDataModule(**given), MetricDataModule(**given, features=True))


def test_a_file_is_of_one_trunk_and_folds_seeds_augmentations_and_methods_share_it(features, monkeypatch):
    data, other = letters(True), learner_of()
    with torch.no_grad():
        next(other.trunk.parameters()).add_(0.1)
    fit(learner_of(), data)
    before = data.evaluated(data.val_subset).clone()
    fit(other, data)  # a datamodule follows the learner that it is given
    expected = embedded(other.trunk, letters(False)).embeddings
    assert not torch.allclose(before, expected, atol=1e-3)
    torch.testing.assert_close(data.evaluated(data.val_subset), expected, atol=1e-5, rtol=0)
    made = features()
    assert len(made) == 2
    monkeypatch.setattr(Glyphs, "load", lambda *_: pytest.fail("opened an image"))
    monkeypatch.setattr(TimmTrunk, "forward", lambda *_: pytest.fail("ran the trunk"))
    augmented = {**FIXED, "scale": (0.5, 1.0), "horizontal_flip": True}
    fit(learner_of(loss=ContrastiveLoss), letters(True, augmented, fold=2, seed=5))
    assert features() == made


# Somebody's learner, which looks at the images.
OwnForward = type("OwnForward", (MetricLearner,), {"forward": lambda self, samples: None})


def test_what_cannot_be_trained_on_features_and_nothing_that_learns_is_refused(tmp_path: Path, tiny, run):
    with pytest.raises(UserError, match="OwnForward"):
        fit(small_learner(ArcFaceLoss, OwnForward, freeze_trunk=True), letters(True))
    with pytest.raises(UserError, match=r"--model\.freeze_trunk"):
        small_learner(freeze_trunk=True, embedder=IdentityEmbedder, embedding_size=96).configure_optimizers()
    words = ["--model.loss", "ArcFaceLoss", "--data.features", "true", "--output", tmp_path]
    refused(run("fit", *tiny, *words), "--model.freeze_trunk true")


def test_the_commands_train_on_features_and_embed_images(tiny, run, features, tmp_path: Path, monkeypatch):
    words = ["--model.loss", "ArcFaceLoss", "--model.freeze_trunk", "true", "--data.features", "true"]
    small = ["--data.dataset.num_classes", "24", "--output", tmp_path, "--name", "it"]
    succeeded(run("fit", *tiny, *words, *small))
    checkpoint = ["--ckpt_path", tmp_path / "fit/it/0/best.ckpt"]
    made = features()
    printed = [succeeded(run("validate", *checkpoint, *more)) for more in ([], ["--data.features", "false"])]
    one, other = ([line for line in each.splitlines() if "map_at_r" in line] for each in printed)
    assert one == other
    succeeded(run("predict", *checkpoint))
    assert features() == made
    load, ledger, opened = Glyphs.load, tmp_path / "fit/it/0/ledger.jsonl", []
    monkeypatch.setattr(Glyphs, "load", lambda self, key: opened.append(ledger.exists()) or load(self, key))
    succeeded(run("test", *checkpoint))
    assert (len(made), len(features())) == (1, 2)
    assert {*opened} == {True}, "the test half is read after the ledger has its line"
    shutil.move(tmp_path / "fit/it/0/best.ckpt", tmp_path / "alone.ckpt")
    assert MetricLearner.load_from_checkpoint(tmp_path / "alone.ckpt").freeze_trunk
    succeeded(run("fit", *tiny, *words[:2], "--ckpt_path", tmp_path / "alone.ckpt", *small))


@pytest.mark.parametrize("freeze_batch_norm", [True, False])
def test_the_trunk_stays_as_it_is_and_the_head_learns(freeze_batch_norm: bool):
    given = {"freeze_batch_norm": freeze_batch_norm, "lr_scheduler": lambda o: StepLR(o, 1)}
    learner, outputs, seen = small_learner(ArcFaceLoss, freeze_trunk=True, **given), [], []
    learner.trunk.register_forward_hook(lambda *call: outputs.append(call[-1].requires_grad))
    before = {name: value.clone() for name, value in learner.state_dict().items()}

    def look(trainer, module, optimizer) -> None:
        modes = {part.training for part in module.trunk.modules()}
        gradients = {weight.grad is not None for weight in module.trunk.parameters()}
        seen.append((modes, gradients, [(group["name"], group["lr"]) for group in optimizer.param_groups]))

    trainer = small_trainer(HeadFirst(1), LambdaCallback(on_before_optimizer_step=look), limit_val_batches=0)
    trainer.fit(learner, datamodule=small_data(batch_size=8, steps_per_epoch=3))
    after = learner.state_dict()
    same = {name.partition(".")[0] for name, value in before.items() if torch.equal(value, after[name])}
    assert same == {"trunk"}
    assert set(outputs) == {False}
    assert seen == [({False}, {False}, [("embedder", 1e-3), ("loss", 0.01)])] * 3


@pytest.fixture(scope="module")
def jobs(tmp_path_factory) -> Path:
    """Jobs of a study on a trunk that does not learn, and on another one, in a folder that was moved afterwards."""
    folder = tmp_path_factory.mktemp("studies")
    for name, (seed, model) in JOBS.items():
        config = small_config(model={"loss": "ArcFaceLoss", **model}, trainer={"max_epochs": 1})
        config["seed_everything"] = seed
        training = Training(config, folder / "before" / name, trunks=folder / "before/trunks").build()
        training.trainer.fit(training.model, datamodule=training.datamodule)
        torch.save(training.model.trunk.state_dict(), folder / f"{name}.pt")
    shutil.move(folder / "before", folder / "moved")
    return folder / "moved"


@pytest.mark.parametrize("name", JOBS)
def test_a_job_keeps_what_it_learnt_and_embeds_after_its_study_has_moved(name: str, jobs: Path):
    assert len([*(jobs / "trunks").iterdir()]) == 2, "below the adapter nothing has changed"
    held = torch.load(jobs / name / "best.ckpt", weights_only=True)["state_dict"]
    assert all(each.startswith(("embedder.", "loss.")) or (name == "lora" and WEIGHTS.search(each)) for each in held)
    learner = MetricLearner.load_from_checkpoint(jobs / name / "best.ckpt")
    assert learner.freeze_trunk == (name != "lora")
    found = learner.trunk.state_dict()
    assert [value.any() for key, value in found.items() if "lora_B" in key] == [True] * (name == "lora")
    for key, value in torch.load(jobs.parent / f"{name}.pt", weights_only=True).items():
        assert torch.equal(found[key], value), key


def test_a_missing_or_changed_trunk_is_named(jobs: Path, tmp_path: Path):
    alone = shutil.copy(jobs / "a/best.ckpt", tmp_path)
    with pytest.raises(UserError, match=f"{tmp_path}/trunks/") as raised:
        MetricLearner.load_from_checkpoint(alone)
    found, images = MetricLearner.load_from_checkpoint(jobs / "a/best.ckpt"), torch.rand(3, 3, 32, 32)
    given = MetricLearner.load_from_checkpoint(alone, trunk=found.trunk)
    torch.testing.assert_close(given(images), found(images))
    (kept,) = [path for path in (jobs / "trunks").iterdir() if path.name in str(raised.value)]
    content = torch.load(kept, weights_only=True)
    next(iter(content.values()))[0] += 1
    (tmp_path / "trunks").mkdir()
    torch.save(content, tmp_path / "trunks" / kept.name)
    with pytest.raises(UserError, match=kept.name):
        MetricLearner.load_from_checkpoint(alone)


@pytest.fixture(scope="module")
def adapted(tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("adapted")
    assert main(["fit", *TINY, *shlex.split(OPTIONS), "--trainer.max_epochs", "1", "--output", str(output)]) == 0
    (folder,) = output.glob("fit/*/0")
    return folder


def test_a_fit_s_one_file_gives_the_same_embeddings_and_every_command_takes_it(adapted, tmp_path, run):
    checkpoint = torch.load(adapted / "best.ckpt", weights_only=True)
    arguments = {"alpha": None, "dropout": 0.0, "rank": 2, "target_modules": None}
    assert checkpoint["hyper_parameters"]["trunk"]["init_args"]["adapter"]["init_args"] == arguments
    state = MetricLearner.load_from_checkpoint(shutil.copy(adapted / "best.ckpt", tmp_path)).state_dict()
    assert all(torch.equal(state[name], value) for name, value in checkpoint["state_dict"].items())
    assert all(value.any() for name, value in state.items() if WEIGHTS.search(name)), "each has learnt"
    assert len([name for name in state if "lora_B" in name]) > 1
    succeeded(run("test", "--ckpt_path", str(adapted / "best.ckpt")))


def test_folds_with_adapters_of_their_own_embed_together_as_each_alone(adapted, tmp_path):
    """They name the same trunk, through which pictures pass once only where nothing in it was learnt."""
    for fold in range(2):
        (tmp_path / "run0" / f"fold{fold}").mkdir(parents=True)
        content = torch.load(adapted / "best.ckpt", weights_only=True)
        assert content["levelfield"][KEY]
        for name, value in content["state_dict"].items():
            if "lora_B" in name:
                value += fold
        torch.save(content, tmp_path / "run0" / f"fold{fold}" / "best.ckpt")
    Image.effect_noise((32, 32), 90).convert("RGB").save(image := tmp_path / "noise.png")
    alone = [levelfield.embed(tmp_path / f"run0/fold{k}/best.ckpt", image).embeddings for k in range(2)]
    assert not torch.allclose(*alone)
    together = levelfield.embed(tmp_path / "run0", image).embeddings
    torch.testing.assert_close(together, normalize(torch.cat(alone, dim=1)))


@needs(EXPORT)
@pytest.mark.full
def test_an_export_has_the_adapter_and_all_else_merged(adapted, tmp_path, run):
    succeeded(run("export", "--ckpt_path", str(adapted / "best.ckpt"), "--output", str(tmp_path / "out")))
    assert peft.PeftConfig.from_pretrained(str(tmp_path / "out" / "adapter")).r == 2
    learner, images = MetricLearner.load_from_checkpoint(adapted / "best.ckpt"), torch.rand(2, 3, 32, 32)
    file = str(tmp_path / "out" / "trunk.safetensors")
    merged = timm.create_model("test_vit", num_classes=0, checkpoint_path=file, depth=2, img_size=32).eval()
    with torch.no_grad():
        found, expected = merged(learner.trunk.standardise(images)), learner.trunk(images)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
