"""Trainings on a device, in each precision, against the same training in float64 on the CPU; and their checkpoints."""

import math
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from torch import Tensor

from levelfield.data.datamodule import MetricDataModule
from levelfield.data.datasets import Glyphs
from levelfield.data.transforms import ImageTransforms
from levelfield.losses import ArcFaceLoss, ContrastiveLoss, CrossBatchMemory, MultiSimilarityLoss
from levelfield.metrics import retrieval_metrics
from levelfield.miners import MultiSimilarityMiner
from levelfield.models import TimmTrunk
from levelfield.training.callbacks import KeepInWandb, NewWeightsFirst, TrackTraining
from levelfield.training.embed import embed
from levelfield.training.learner import MetricLearner

pytestmark = [pytest.mark.usefixtures("quiet"), pytest.mark.filterwarnings("ignore:You defined a `validation_step`")]

METHODS = {
    "contrastive": lambda: {"loss": ContrastiveLoss(neg_margin=0.5)},
    "mined": lambda: {"loss": MultiSimilarityLoss(), "miner": MultiSimilarityMiner()},
    "class weights": lambda: {"loss": ArcFaceLoss},
    "memory": lambda: {"loss": CrossBatchMemory(ContrastiveLoss(), embedding_size=16, memory_size=64)},
}
# How far a loss may lie from float64's: a GPU's convolutions in float32 are TF32, unless it is told otherwise.
PRECISIONS = {"64-true": 1e-6, "32-true": 5e-3, "bf16-mixed": 5e-2, "16-mixed": 2e-2}


class Losses(Callback):
    """Keeps the loss of each step."""

    def __init__(self) -> None:
        self.kept: list[Tensor] = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        self.kept.append(outputs["loss"].detach())


def data() -> MetricDataModule:
    transforms = ImageTransforms(crop_size=32, resize=32, scale=(0.6, 1.0), horizontal_flip=False)
    return MetricDataModule(
        Glyphs(num_classes=32, image_size=32), batch_size=16, steps_per_epoch=3, transforms=transforms
    )


def fitted(
    device: str, precision: str, method: str, epochs: int = 1, go_on_from: Path | None = None
) -> tuple[Trainer, MetricLearner, list[float]]:
    torch.manual_seed(0)
    learner = MetricLearner(TimmTrunk("test_resnet", weights=None), embedding_size=16, **METHODS[method]())
    losses = Losses()
    trainer = Trainer(
        accelerator=device, devices=1, precision=precision, max_epochs=epochs, callbacks=[losses], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(learner, datamodule=data(), ckpt_path=go_on_from)
    return trainer, learner, [float(loss) for loss in losses.kept]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_losses_of_a_training_are_those_of_float64_on_the_cpu(precision, method, device):
    if device == "cpu" and (precision == "16-mixed" or (precision == "bf16-mixed" and method != "contrastive")):
        pytest.skip("float16 is for GPUs, and bfloat16 slow on most processors")
    _, _, expected = fitted("cpu", "64-true", method)
    trainer, _, found = fitted(device, precision, method)
    assert trainer.strategy.root_device.type == device
    bound = PRECISIONS[precision]
    assert found[0] == pytest.approx(expected[0], rel=bound, abs=bound)
    if precision != "16-mixed":  # whose first steps find the scale of its gradients, and may be passed over
        assert found[1:] == pytest.approx(expected[1:], rel=3 * bound, abs=3 * bound)
    assert all(map(math.isfinite, found))


def test_a_checkpoint_of_a_device_embeds_on_the_cpu_and_goes_on_on_the_device(device, tmp_path):
    trainer, _, whole = fitted(device, "64-true", "class weights", epochs=2)
    half, _, _ = fitted(device, "64-true", "class weights", epochs=1)
    half.save_checkpoint(tmp_path / "half.ckpt")
    _, _, rest = fitted(device, "64-true", "class weights", epochs=2, go_on_from=tmp_path / "half.ckpt")
    assert rest == pytest.approx(whole[3:], rel=1e-6)  # Lightning reads float64 weights into float32 ones first

    trainer.save_checkpoint(tmp_path / "whole.ckpt")
    samples = data()
    samples.setup("validate")
    loaded = MetricLearner.load_from_checkpoint(tmp_path / "whole.ckpt")
    assert loaded.device.type == "cpu"
    loader = samples.eval_dataloader(samples.val_subset)
    scores = []
    for where in ("cpu", device):
        with torch.backends.cudnn.flags(allow_tf32=False):
            embedded = embed(loaded, loader, device=where)
        scores.append(retrieval_metrics(embedded.embeddings, embedded.labels, metrics=("map_at_r",))["map_at_r"])
    assert scores[0] == pytest.approx(scores[1], abs=5e-3)
    assert scores[0] == pytest.approx(float(trainer.callback_metrics["val/map_at_r"]), abs=5e-3)


class NoWaiting(Callback):
    """Has CUDA refuse to be waited for, from the fourth step on until the next look at the losses."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
        torch.cuda.set_sync_debug_mode("error" if 3 <= batch_idx < 9 else "default")

    def on_exception(self, trainer, pl_module, exception) -> None:
        torch.cuda.set_sync_debug_mode("default")


class OnTheGpu:
    """Twelve batches of pictures that lie there."""

    def __len__(self) -> int:
        return 12

    def __iter__(self):
        for _ in range(len(self)):
            yield torch.rand(16, 3, 32, 32, device="cuda"), torch.arange(16, device="cuda") // 4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("shows_a_bar", [False, True])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_step_waits_for_nothing(precision, shows_a_bar):
    learner = MetricLearner(TimmTrunk("test_resnet", weights=None), ContrastiveLoss(), embedding_size=16)
    Trainer(
        accelerator="cuda", devices=1, precision=precision, max_epochs=1, callbacks=[NoWaiting()], logger=False,
        enable_checkpointing=False, enable_progress_bar=shows_a_bar, enable_model_summary=False, limit_val_batches=0,
        log_every_n_steps=10,
    ).fit(learner, OnTheGpu())  # fmt: skip


@pytest.mark.parametrize("features", [False, True])
def test_a_frozen_trunk_and_a_start_at_the_pca_train_on_a_device(features, device, tmp_path, monkeypatch):
    monkeypatch.setenv("LEVELFIELD_CACHE", str(tmp_path))
    learner = MetricLearner(
        TimmTrunk("test_resnet", weights=None), ContrastiveLoss(), embedding_size=16, freeze_trunk=features,
        embedder_init="pca",
    )  # fmt: skip
    samples = data()
    samples.features = features
    trainer = Trainer(
        accelerator=device, devices=1, max_epochs=1, logger=False, default_root_dir=tmp_path,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(learner, datamodule=samples)
    assert math.isfinite(trainer.callback_metrics["val/map_at_r"])
    assert Path(trainer.checkpoint_callback.best_model_path).is_file()


def test_what_a_tracker_is_told_while_the_trunk_waits_lies_on_one_device(device, tmp_path):
    told: list[dict[str, float]] = []

    class Board(TensorBoardLogger):
        def log_metrics(self, metrics, step=None) -> None:
            told.append(dict(metrics))

    trainer = Trainer(
        accelerator=device, devices=1, max_epochs=1, logger=Board(tmp_path), log_every_n_steps=1,
        callbacks=[NewWeightsFirst(epochs=1), TrackTraining(every_n_steps=1)], enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
    )  # fmt: skip
    learner = MetricLearner(TimmTrunk("test_resnet", weights=None), ContrastiveLoss(), embedding_size=16)
    trainer.fit(learner, datamodule=data())
    trunks = [numbers["grad_norm/trunk"] for numbers in told if "grad_norm/trunk" in numbers]
    assert trunks == [0.0] * 3


def test_the_neighbours_of_a_fit_are_embedded_on_its_device(device, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    learner, devices = MetricLearner(TimmTrunk("test_resnet", weights=None), ContrastiveLoss(), embedding_size=16), []
    learner.trunk.register_forward_hook(lambda module, args, features: devices.append(features.device.type))
    logger = WandbLogger(save_dir=tmp_path, offline=True)
    Trainer(
        accelerator=device, devices=1, max_epochs=1, limit_train_batches=1, num_sanity_val_steps=0, logger=logger,
        callbacks=[KeepInWandb(queries=2, checkpoint=False)], enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, log_every_n_steps=1,
    ).fit(learner, datamodule=data())  # fmt: skip
    logger.experiment.finish()
    assert set(devices) == {device}
