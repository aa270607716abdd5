"""Trainings on a device against the same ones on the CPU, and their checkpoints.

Without a GPU one is pretended, on which tensors of two devices do not go together.
"""

import math
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.accelerators import CUDAAccelerator
from plain_lightning import Pooled
from pretended_gpu import pretended_gpu
from small_fit import small_data, small_learner, small_trainer
from torch import Tensor

from levelfield.data.datamodule import MetricDataModule
from levelfield.losses import ArcFaceLoss, ContrastiveLoss, CrossBatchMemory, MultiSimilarityLoss
from levelfield.metrics import retrieval_metrics
from levelfield.miners import MultiSimilarityMiner
from levelfield.regularizers import CenterInvariance
from levelfield.training.callbacks import GradientCaching, GradientCheckpointing
from levelfield.training.embed import embed
from levelfield.training.learner import MetricLearner

pytestmark = [
    pytest.mark.usefixtures("quiet"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step`"),
    pytest.mark.filterwarnings("ignore:'pin_memory' argument"),
]
ON_CUDA = (pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"))
METHODS = {
    "contrastive": lambda: {"loss": ContrastiveLoss(neg_margin=0.5)},
    "mined": lambda: {"loss": MultiSimilarityLoss(), "miner": MultiSimilarityMiner()},
    "class weights": lambda: {"loss": ArcFaceLoss},
    "memory": lambda: {"loss": CrossBatchMemory(ContrastiveLoss(), embedding_size=16, memory_size=64)},
}
# How far a loss may lie from float64's: a GPU's convolutions in float32 are TF32, unless it is told otherwise.
PRECISIONS = {"64-true": 1e-6, "32-true": 5e-3, "bf16-mixed": 5e-2, "16-mixed": 2e-2}


LEARNERS = {  # tests/losses/test_losses_on_device.py has all losses
    **METHODS,
    "a regularizer of class weights": lambda: {"loss": ArcFaceLoss, "regularizer": CenterInvariance()},
    "raw embeddings": lambda: {"loss": ContrastiveLoss(), "normalize": False, "distance": "euclidean"},
    "chunks": lambda: {"loss": MultiSimilarityLoss(), "miner": MultiSimilarityMiner()},
    "batch norm": lambda: {"loss": ContrastiveLoss(), "freeze_batch_norm": False},
    "a frozen trunk": lambda: {"loss": ContrastiveLoss(), "freeze_trunk": True, "embedder_init": "pca"},
    "features": lambda: {"loss": ArcFaceLoss, "freeze_trunk": True},
    "fewer activations": lambda: {"loss": ContrastiveLoss(), "layer_decay": 0.9},
    "a trunk of one's own": lambda: {"loss": ContrastiveLoss(), "trunk": Pooled()},
}
TRAINERS: dict[str, dict[str, Any]] = {
    "contrastive": {"gradient_clip_val": 0.5},
    "mined": {"accumulate_grad_batches": 2},
    "chunks": {"callbacks": [GradientCaching(5)]},
    "fewer activations": {"callbacks": [GradientCheckpointing()]},
}
ALWAYS = {"class weights", "memory", "chunks", "features"}


class Losses(Callback):
    """Keeps the loss of each step."""

    def __init__(self) -> None:
        self.kept: list[Tensor] = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        self.kept.append(outputs["loss"].detach())


@pytest.fixture
def lightning_sees_a_gpu(monkeypatch):
    monkeypatch.setattr(CUDAAccelerator, "is_available", staticmethod(lambda: True))
    monkeypatch.setattr(CUDAAccelerator, "parse_devices", staticmethod(lambda devices: [0]))
    monkeypatch.setattr(CUDAAccelerator, "setup_device", lambda accelerator, device: None)


@pytest.fixture(params=["cpu", pytest.param("pretended", marks=pytest.mark.full), pytest.param("cuda", marks=ON_CUDA)])
def device(request):
    if request.param == "pretended":
        request.getfixturevalue("lightning_sees_a_gpu")
        with pretended_gpu() as name:
            yield name
    else:
        yield request.param


def data(**arguments: Any) -> MetricDataModule:
    return small_data(32, batch_size=16, steps_per_epoch=3, **arguments)


def fitted(
    learner: MetricLearner, device: str, *callbacks: Callback, features: bool = False, path: Any = None, **trainer: Any
) -> tuple[Trainer, list[float]]:
    """The trainer and the losses of its steps."""
    losses = Losses()
    fits = small_trainer(losses, *callbacks, accelerator=device, devices=1, log_every_n_steps=1, **trainer)
    fits.fit(learner, datamodule=data(features=features), ckpt_path=path)
    assert {loss.device.type for loss in losses.kept} == {device}
    return fits, [float(loss) for loss in losses.kept]


@pytest.mark.parametrize(
    ("where", "precision", "method"),
    [
        *(("cpu", "32-true", method) for method in METHODS),
        *(pytest.param("cuda", each, method, marks=ON_CUDA) for each in PRECISIONS for method in METHODS),
    ],
)
def test_the_losses_of_a_training_are_those_of_float64_on_the_cpu(where, precision, method):
    _, expected = fitted(small_learner(**METHODS[method]()), "cpu", precision="64-true")
    _, found = fitted(small_learner(**METHODS[method]()), where, precision=precision)
    bound = PRECISIONS[precision]
    assert found[0] == pytest.approx(expected[0], rel=bound, abs=bound)
    if precision != "16-mixed":  # whose first steps find the scale of its gradients, and may be passed over
        assert found[1:] == pytest.approx(expected[1:], rel=3 * bound, abs=3 * bound)
    assert all(map(math.isfinite, found))


@pytest.mark.slow
@pytest.mark.usefixtures("lightning_sees_a_gpu")
@pytest.mark.parametrize(
    "method", [pytest.param(each, marks=() if each in ALWAYS else pytest.mark.full) for each in LEARNERS]
)
def test_a_training_on_a_pretended_gpu_is_that_of_the_cpu(method, tmp_path, monkeypatch):
    monkeypatch.setenv("LEVELFIELD_CACHE", str(tmp_path))

    def on(device: str) -> tuple[list[float], float]:
        torch.manual_seed(0)  # of weights that are drawn before the learner has its seed
        given = {"callbacks": [], **TRAINERS.get(method, {})}
        learner, callbacks = small_learner(**LEARNERS[method]()), given.pop("callbacks")
        features = method == "features"
        trainer, losses = fitted(learner, device, *callbacks, features=features, precision="64-true", **given)
        return losses, float(trainer.callback_metrics["val/map_at_r"])

    expected, score = on("cpu")
    with pretended_gpu() as gpu:
        found, score_there = on(gpu)
    assert found == pytest.approx(expected, rel=1e-9)
    assert score_there == pytest.approx(score, rel=1e-6)


def test_a_checkpoint_of_a_device_embeds_on_the_cpu_and_goes_on_on_the_device(device, tmp_path):
    def train(**how: Any) -> tuple[Trainer, list[float]]:
        return fitted(small_learner(ArcFaceLoss), device, precision="64-true", **how)

    trainer, whole = train(max_epochs=2)
    train()[0].save_checkpoint(tmp_path / "half.ckpt")
    rest = train(max_epochs=2, path=tmp_path / "half.ckpt")[1]
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
    given = {"accelerator": "cuda", "devices": 1, "precision": precision, "enable_progress_bar": shows_a_bar}
    small_trainer(NoWaiting(), limit_val_batches=0, log_every_n_steps=10, **given).fit(small_learner(), OnTheGpu())
