"""Trainings on a device, without a GPU on a pretended one, against the same ones on the CPU, and their checkpoints."""

import contextlib
import functools
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from lightning.pytorch.accelerators import CUDAAccelerator
from lightning.pytorch.callbacks import LambdaCallback
from plain_lightning import Pooled
from pretended_gpu import ON_CUDA, pretended_gpu
from small_fit import small_data, small_learner, small_trainer
from torch.utils.data import DataLoader

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


def mined() -> dict[str, Any]:
    return {"loss": MultiSimilarityLoss(), "miner": MultiSimilarityMiner()}


METHODS = {
    "contrastive": lambda: {"loss": ContrastiveLoss(neg_margin=0.5), "trainer": {"gradient_clip_val": 0.5}},
    "mined": lambda: {**mined(), "trainer": {"accumulate_grad_batches": 2}},
    "class weights": lambda: {"loss": ArcFaceLoss},
    "memory": lambda: {"loss": CrossBatchMemory(ContrastiveLoss(), embedding_size=16, memory_size=64)},
}
LEARNERS = {  # tests/losses/test_losses_on_device.py has all losses
    **METHODS,
    "a regularizer of class weights": lambda: {"loss": ArcFaceLoss, "regularizer": CenterInvariance()},
    "raw embeddings": lambda: {"normalize": False, "distance": "euclidean"},
    "chunks": lambda: {**mined(), "trainer": {"callbacks": [GradientCaching(5)]}},
    "batch norm": lambda: {"freeze_batch_norm": False},
    "a frozen trunk": lambda: {"freeze_trunk": True, "embedder_init": "pca"},
    "features": lambda: {"loss": ArcFaceLoss, "freeze_trunk": True},
    "fewer activations": lambda: {"layer_decay": 0.9, "trainer": {"callbacks": [GradientCheckpointing()]}},
    "a trunk of one's own": lambda: {"trunk": Pooled()},
}
# How far a loss may lie from float64's: a GPU's convolutions in float32 are TF32, unless it is told otherwise.
PRECISIONS = {"64-true": 1e-6, "32-true": 5e-3, "bf16-mixed": 5e-2, "16-mixed": 2e-2}
IN_MAKE_TEST = ("class weights", "memory", "chunks", "features")
OTHERS = [name for name in LEARNERS if name not in IN_MAKE_TEST]
ON_GPU = pytest.param("cuda", marks=ON_CUDA)
TRAININGS = [
    *(("cpu", "32-true", name) for name in METHODS),
    *(pytest.param("pretended", "64-true", name, marks=pytest.mark.slow) for name in IN_MAKE_TEST),
    *(pytest.param("pretended", "64-true", name, marks=pytest.mark.full) for name in OTHERS),
    *(pytest.param("cuda", each, name, marks=ON_CUDA) for each in PRECISIONS for name in METHODS),
]


@contextlib.contextmanager
def named(where: str) -> Iterator[str]:
    """The device's name; Lightning takes a pretended GPU for one."""
    with contextlib.ExitStack() as stack:
        if where == "pretended":
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            patch.setattr(CUDAAccelerator, "is_available", staticmethod(lambda: True))
            patch.setattr(CUDAAccelerator, "parse_devices", staticmethod(lambda devices: [0]))
            patch.setattr(CUDAAccelerator, "setup_device", lambda accelerator, device: None)
            where = stack.enter_context(pretended_gpu())
        yield where


def fitted(name: str, where: str, *, path: Any = None, **trainer: Any) -> Any:
    """The trainer, the losses of its steps and the last score."""
    torch.manual_seed(0)  # of weights that are drawn before the learner has its seed
    losses, arguments = [], LEARNERS[name]()
    given = {"callbacks": [], **arguments.pop("trainer", {}), **trainer}
    learner = small_learner(**arguments)
    keep = LambdaCallback(on_train_batch_end=lambda *step: losses.append(step[2]["loss"].detach()))
    fits = small_trainer(keep, *given.pop("callbacks"), accelerator=where, devices=1, log_every_n_steps=1, **given)
    data = small_data(32, batch_size=16, steps_per_epoch=3, features=name == "features")
    fits.fit(learner, datamodule=data, ckpt_path=path)
    assert {loss.device.type for loss in losses} == {where}
    return fits, [float(loss) for loss in losses], float(fits.callback_metrics["val/map_at_r"])


@pytest.mark.parametrize(("where", "precision", "name"), TRAININGS)
def test_the_losses_of_a_training_are_those_of_float64_on_the_cpu(where, precision, name, tmp_path, monkeypatch):
    monkeypatch.setenv("LEVELFIELD_CACHE", str(tmp_path))
    _, expected, score = fitted(name, "cpu", precision="64-true")
    with named(where) as device:
        _, found, score_there = fitted(name, device, precision=precision)
    bound = 1e-9 if where == "pretended" else PRECISIONS[precision]
    assert found[0] == pytest.approx(expected[0], rel=bound, abs=bound)
    if precision != "16-mixed":  # whose first steps find the scale of its gradients, and may be passed over
        assert found[1:] == pytest.approx(expected[1:], rel=3 * bound, abs=3 * bound)
    assert all(map(math.isfinite, found))
    assert where != "pretended" or score_there == pytest.approx(score, rel=1e-6)


@pytest.mark.parametrize("where", ["cpu", pytest.param("pretended", marks=pytest.mark.full), ON_GPU])
def test_a_checkpoint_of_a_device_embeds_on_the_cpu_and_goes_on_on_the_device(where, tmp_path):
    with named(where) as device:
        train = functools.partial(fitted, "class weights", device, precision="64-true")
        trainer, whole, score = train(max_epochs=2)
        train()[0].save_checkpoint(tmp_path / "half.ckpt")
        rest = train(max_epochs=2, path=tmp_path / "half.ckpt")[1]
        assert rest == pytest.approx(whole[3:], rel=1e-6)  # Lightning reads float64 weights into float32 ones first
        trainer.save_checkpoint(tmp_path / "whole.ckpt")
        loaded, samples = MetricLearner.load_from_checkpoint(tmp_path / "whole.ckpt"), trainer.datamodule
        assert loaded.device.type == "cpu"
        for place in ("cpu", device):
            with torch.backends.cudnn.flags(allow_tf32=False):
                embedded = embed(loaded, samples.eval_dataloader(samples.val_subset), device=place)
            found = retrieval_metrics(embedded.embeddings, embedded.labels, metrics=("map_at_r",))["map_at_r"]
            assert found == pytest.approx(score, abs=5e-3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("shows_a_bar", [False, True])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_step_waits_for_nothing(precision, shows_a_bar):
    """From the fourth step on until the next look at the losses CUDA refuses to be waited for."""
    given = {"accelerator": "cuda", "devices": 1, "precision": precision, "enable_progress_bar": shows_a_bar}
    batches = [(torch.rand(16, 3, 32, 32, device="cuda"), torch.arange(16, device="cuda") // 4)] * 12
    refuse = LambdaCallback(
        on_train_batch_start=lambda *step: torch.cuda.set_sync_debug_mode("error" if 3 <= step[3] < 9 else "default"),
        on_exception=lambda *_: torch.cuda.set_sync_debug_mode("default"),
    )
    trainer = small_trainer(refuse, limit_val_batches=0, log_every_n_steps=10, **given)
    trainer.fit(small_learner(), DataLoader(batches, batch_size=None))
