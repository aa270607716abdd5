"""Trainings on a pretended GPU, where tensors of two devices do not go together, against the same ones on the CPU."""

from functools import partial
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.accelerators import CUDAAccelerator
from pretended_gpu import pretended_gpu
from test_training_on_device import (  # noqa: F401 # here on the device below
    METHODS,
    Losses,
    data,
    test_a_checkpoint_of_a_device_embeds_on_the_cpu_and_goes_on_on_the_device,
    test_a_frozen_trunk_and_a_start_at_the_pca_train_on_a_device,
    test_the_neighbours_of_a_fit_are_embedded_on_its_device,
    test_what_a_tracker_is_told_while_the_trunk_waits_lies_on_one_device,
)
from torch import nn

from levelfield.losses import (
    ArcFaceLoss,
    CentroidTripletLoss,
    ContrastiveLoss,
    CrossBatchMemory,
    MarginLoss,
    MultiSimilarityLoss,
    ProxyAnchorLoss,
    SigmoidPairLoss,
    SmoothAPLoss,
    SoftTripleLoss,
    TripletMarginLoss,
    WeightedSum,
)
from levelfield.miners import BatchHardMiner, MultiSimilarityMiner
from levelfield.models import TimmTrunk
from levelfield.regularizers import CenterInvariance, KoLeo, SphericalConstraint
from levelfield.training.callbacks import GradientCaching, GradientCheckpointing
from levelfield.training.learner import MetricLearner

pytestmark = [
    pytest.mark.usefixtures("quiet"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step`"),
    pytest.mark.filterwarnings("ignore:'pin_memory' argument"),
]


def pairs_and_classes(num_classes: int, embedding_size: int) -> WeightedSum:
    parts = {"pairs": MultiSimilarityLoss(), "classes": ProxyAnchorLoss(num_classes, embedding_size)}
    return WeightedSum(parts, {"classes": 0.5})


LEARNERS = {
    **METHODS,
    "hardest triplets": lambda: {"loss": TripletMarginLoss(), "miner": BatchHardMiner()},
    "ranks": lambda: {"loss": SmoothAPLoss()},
    "centroids": lambda: {"loss": CentroidTripletLoss()},
    "a learnt scale": lambda: {"loss": SigmoidPairLoss()},
    "learnt boundaries": lambda: {"loss": partial(MarginLoss, learn_beta=True)},
    "a part of the classes": lambda: {"loss": partial(ArcFaceLoss, class_fraction=0.8)},
    "several centers": lambda: {"loss": SoftTripleLoss},
    "a mined memory": lambda: {
        "loss": CrossBatchMemory(ContrastiveLoss(), embedding_size=16, memory_size=40, miner=MultiSimilarityMiner())
    },
    "a sum": lambda: {"loss": pairs_and_classes},
    "a regularizer": lambda: {"loss": ContrastiveLoss(), "regularizer": KoLeo()},
    "a regularizer of class weights": lambda: {"loss": ArcFaceLoss, "regularizer": CenterInvariance()},
    "raw embeddings": lambda: {
        "loss": ContrastiveLoss(), "regularizer": SphericalConstraint(), "normalize": False, "distance": "euclidean",
    },
    "chunks": lambda: {"loss": MultiSimilarityLoss(), "miner": MultiSimilarityMiner()},
    "chunks for class weights": lambda: {"loss": ArcFaceLoss},
    "batch norm": lambda: {"loss": ContrastiveLoss(), "freeze_batch_norm": False},
    "a frozen trunk": lambda: {"loss": ContrastiveLoss(), "freeze_trunk": True, "embedder_init": "pca"},
    "features": lambda: {"loss": ArcFaceLoss, "freeze_trunk": True},
    "fewer activations": lambda: {"loss": ContrastiveLoss(), "layer_decay": 0.9},
}  # fmt: skip
TRAINERS: dict[str, dict[str, Any]] = {
    "contrastive": {"gradient_clip_val": 0.5},
    "ranks": {"accumulate_grad_batches": 2},
    "chunks": {"callbacks": [GradientCaching(5)]},
    "chunks for class weights": {"callbacks": [GradientCaching(5)]},
    "fewer activations": {"callbacks": [GradientCheckpointing()]},
}


@pytest.fixture(autouse=True)
def lightning_sees_a_gpu(monkeypatch):
    monkeypatch.setattr(CUDAAccelerator, "is_available", staticmethod(lambda: True))
    monkeypatch.setattr(CUDAAccelerator, "parse_devices", staticmethod(lambda devices: [0]))
    monkeypatch.setattr(CUDAAccelerator, "setup_device", lambda accelerator, device: None)


@pytest.fixture
def device():
    with pretended_gpu() as name:
        yield name


def fitted(learner: MetricLearner, device: str, features: bool = False, **trainer: Any) -> tuple[list[float], float]:
    """The losses of its steps, and its score."""
    samples, losses = data(), Losses()
    samples.features = features
    callbacks = [losses, *trainer.pop("callbacks", [])]
    fits = Trainer(
        accelerator=device, devices=1, max_epochs=1, callbacks=callbacks, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
        log_every_n_steps=1, **trainer,
    )  # fmt: skip
    fits.fit(learner, datamodule=samples)
    assert {loss.device.type for loss in losses.kept} == {device}
    return [float(loss) for loss in losses.kept], float(fits.callback_metrics["val/map_at_r"])


@pytest.mark.parametrize("method", LEARNERS)
def test_a_training_is_that_of_the_cpu(method, tmp_path, monkeypatch):
    monkeypatch.setenv("LEVELFIELD_CACHE", str(tmp_path))

    def on(device: str) -> tuple[list[float], float]:
        torch.manual_seed(0)
        learner = MetricLearner(TimmTrunk("test_resnet", weights=None), embedding_size=16, **LEARNERS[method]())
        return fitted(learner, device, method == "features", precision="64-true", **TRAINERS.get(method, {}))

    expected, score = on("cpu")
    with pretended_gpu() as gpu:
        found, score_there = on(gpu)
    assert found == pytest.approx(expected, rel=1e-9)
    assert score_there == pytest.approx(score, rel=1e-6)


class OwnTrunk(nn.Module):
    num_features = 8

    def __init__(self):
        super().__init__()
        self.filters = nn.Conv2d(3, 8, 3)

    def forward(self, images):
        return self.filters(images).mean((2, 3))


@pytest.mark.parametrize("trunk", [OwnTrunk, partial(TimmTrunk, "test_resnet", weights=None)], ids=["own", "timm"])
@pytest.mark.parametrize("precision", ["64-true", "bf16-true"])
def test_images_that_come_as_bytes_have_the_weights_precision(trunk, precision):
    def on(device: str) -> list[float]:
        torch.manual_seed(0)
        return fitted(MetricLearner(trunk(), ContrastiveLoss(), embedding_size=4), device, precision=precision)[0]

    expected = on("cpu")
    with pretended_gpu() as gpu:
        assert on(gpu) == pytest.approx(expected, rel=1e-6 if precision == "64-true" else 5e-3)
