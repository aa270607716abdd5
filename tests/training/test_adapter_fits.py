"""Fits with an adapter: what changes, what a checkpoint holds, and what comes back from it."""

from pathlib import Path

import peft
import pytest
import timm
import torch
from deletable import EXPORT, needs
from PIL import Image
from refused import refused, succeeded
from small_fit import small_config, small_data, small_trainer
from tiny_fit import TINY
from torch.nn.functional import normalize

from levelfield import embed
from levelfield.cli.main import main
from levelfield.losses import ContrastiveLoss
from levelfield.models import LoRA, TimmTrunk
from levelfield.models.adapters import WEIGHTS, add_adapter, own_state
from levelfield.training.build import SharedParts, Training
from levelfield.training.callbacks import GradientCheckpointing
from levelfield.training.frozen_trunk import KEY
from levelfield.training.learner import MetricLearner

pytestmark = pytest.mark.usefixtures("quiet")

VIT = {"name": "test_vit", "weights": None, "arguments": {"depth": 2, "img_size": 32}}
OPTIONS = [
    *("--model.trunk.name", "test_vit", "--model.trunk.arguments", "{depth: 2, img_size: 32}"),
    *("--model.loss", "ContrastiveLoss", "--model.trunk.adapter", "LoRA", "--model.trunk.adapter.rank", "2"),
]


def learner_of(trunk: TimmTrunk, **arguments) -> MetricLearner:
    return MetricLearner(trunk, loss=ContrastiveLoss(), embedding_size=8, **arguments)


RESNET = {"name": "test_resnet", "weights": None}


@pytest.mark.parametrize(
    ("trunk", "targets", "checkpointing"), [(VIT, None, True), (RESNET, ["conv1.3", "conv1.6"], False)]
)
def test_adapter_and_embedder_change_and_nothing_else(trunk, targets, checkpointing):
    torch.manual_seed(0)
    adapter = LoRA(rank=2, target_modules=targets)
    learner = learner_of(TimmTrunk(**trunk, adapter=adapter), freeze_batch_norm=checkpointing, trunk_lr=1e-2)
    before = {name: value.clone() for name, value in learner.state_dict().items()}
    trainer = small_trainer(*[GradientCheckpointing()] * checkpointing, limit_val_batches=0)
    trainer.fit(learner, datamodule=small_data(batch_size=8, steps_per_epoch=2))
    changed = {name for name, value in learner.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {name for name in before if name.startswith("embedder.") or WEIGHTS.search(name)}


@pytest.fixture(scope="module")
def fitted(tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("adapted")
    assert main(["fit", *TINY, *OPTIONS, "--trainer.max_epochs", "1", "--output", str(output)]) == 0
    (folder,) = output.glob("fit/*/0")
    return folder


def test_a_fit_s_one_file_gives_the_same_embeddings_and_every_command_takes_it(fitted, tmp_path, run):
    checkpoint = torch.load(fitted / "best.ckpt", weights_only=True)
    arguments = {"alpha": None, "dropout": 0.0, "rank": 2, "target_modules": None}
    assert checkpoint["hyper_parameters"]["trunk"]["init_args"]["adapter"]["init_args"] == arguments
    alone = tmp_path / "elsewhere.ckpt"
    alone.write_bytes((fitted / "best.ckpt").read_bytes())
    again = MetricLearner.load_from_checkpoint(alone)
    state = again.state_dict()
    assert all(torch.equal(state[name], value) for name, value in checkpoint["state_dict"].items())
    assert "lora_A" in "".join(state)
    torch.manual_seed(3)
    trained = learner_of(TimmTrunk(**VIT, adapter=LoRA(rank=2)))
    trained.embedder = again.embedder
    trained.load_state_dict(state)
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(trained.eval()(images), again(images))
    succeeded(run("test", "--ckpt_path", str(fitted / "best.ckpt")))
    refused(run("fit", *TINY, *OPTIONS, "--model.trunk.adapter", "lorra"), "--model.trunk.adapter", "LoRA")


def test_folds_with_adapters_of_their_own_embed_together_as_each_alone(fitted, tmp_path):
    """They name the same trunk, through which pictures pass once only where nothing in it was learnt."""
    for fold in range(2):
        (tmp_path / "run0" / f"fold{fold}").mkdir(parents=True)
        content = torch.load(fitted / "best.ckpt", weights_only=True)
        assert content["levelfield"][KEY]
        for name, value in content["state_dict"].items():
            if "lora_B" in name:
                value += fold
        torch.save(content, tmp_path / "run0" / f"fold{fold}" / "best.ckpt")
    Image.effect_noise((32, 32), 90).convert("RGB").save(tmp_path / "noise.png")
    alone = [embed(tmp_path / "run0" / f"fold{k}" / "best.ckpt", tmp_path / "noise.png").embeddings for k in range(2)]
    assert not torch.allclose(*alone)
    together = embed(tmp_path / "run0", tmp_path / "noise.png").embeddings
    torch.testing.assert_close(together, normalize(torch.cat(alone, dim=1)))


def test_a_study_s_checkpoint_holds_what_was_learnt_and_finds_its_trunk(tmp_path):
    lora = {"class_path": "LoRA", "init_args": {"rank": 2}}
    for name, adapter, given in (("frozen", None, {"freeze_trunk": True}), ("lora", lora, {"trunk_lr": 0.1})):
        trunk = {"class_path": "TimmTrunk", "init_args": {**VIT, "adapter": adapter}}
        config = small_config(model={"trunk": trunk, **given}, trainer={"max_epochs": 1}, data={"steps_per_epoch": 1})
        training = Training(config, tmp_path / name, trunks=tmp_path / "trunks").build()
        training.trainer.fit(training.model, datamodule=training.datamodule)
    assert len(list((tmp_path / "trunks").glob("*.pt"))) == 1  # both have the same
    held = torch.load(tmp_path / "lora" / "best.ckpt", weights_only=True)["state_dict"]
    assert all(name.startswith("embedder.") or WEIGHTS.search(name) for name in held)
    again = MetricLearner.load_from_checkpoint(tmp_path / "lora" / "best.ckpt")
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(again(images), training.model.eval()(images))


def test_a_trunk_with_an_adapter_is_not_the_next_training_s():
    kept = SharedParts()
    for _ in range(2):
        torch.manual_seed(0)
        trunk = kept.trunk(TimmTrunk, VIT)
        assert trunk.adapter is None
        add_adapter(trunk, LoRA(rank=1))


@needs(EXPORT)
@pytest.mark.full
def test_an_export_has_the_adapter_as_peft_has_it_and_all_else_merged(fitted, tmp_path, run):
    succeeded(run("export", "--ckpt_path", str(fitted / "best.ckpt"), "--output", str(tmp_path / "out")))
    learner = MetricLearner.load_from_checkpoint(fitted / "best.ckpt")
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        expected = learner.trunk(images)
        file = str(tmp_path / "out" / "trunk.safetensors")
        merged = timm.create_model("test_vit", num_classes=0, checkpoint_path=file, **VIT["arguments"]).eval()
        torch.testing.assert_close(merged(learner.trunk.standardise(images)), expected, rtol=1e-5, atol=1e-5)
        base = timm.create_model("test_vit", num_classes=0, **VIT["arguments"]).eval()
        base.load_state_dict({key.removeprefix("model."): value for key, value in own_state(learner.trunk).items()})
        theirs = peft.PeftModel.from_pretrained(base, str(tmp_path / "out" / "adapter")).eval()
        torch.testing.assert_close(theirs(learner.trunk.standardise(images)), expected)
