"""One step of some losses on this process group; run by `test_two_processes.py` with one and with two processes.

Writes `<folder>/<world size>.pt`: for each case the loss, the weights after a step of SGD with rate 1 (so that their
change is the gradient), the batches drawn, and the validation scores, of rank 0. Each process writes
`<folder>/left_<world size>_<rank>.json`: whether it had left its group when it ended.
"""

import atexit
import inspect
import json
import os
import sys
import warnings
from pathlib import Path

import torch
from lightning.pytorch import Callback, Trainer

from levelfield import losses, miners, regularizers
from levelfield.data.datamodule import MetricDataModule
from levelfield.data.datasets import Glyphs
from levelfield.data.transforms import ImageTransforms
from levelfield.models import TimmTrunk
from levelfield.training.callbacks import GradientCaching
from levelfield.training.learner import MetricLearner

# On images. tests/losses/test_over_processes.py has all losses, on points.
CASES = {
    "ContrastiveLoss": (losses.ContrastiveLoss, {}, None),
    "random triplets": (losses.TripletMarginLoss, {"triplets_per_anchor": 2}, None),
    "a learnt margin": (losses.MarginLoss, {"learn_beta": True}, None),
    "ArcFaceLoss": (losses.ArcFaceLoss, {}, None),
    "half the classes": (losses.ArcFaceLoss, {"class_fraction": 0.5}, None),
    "a miner": (losses.TripletMarginLoss, {}, miners.BatchHardMiner),
    "a miner that draws": (losses.TripletMarginLoss, {}, miners.DistanceWeightedMiner),
    "a regularizer": (losses.ContrastiveLoss, {}, None, regularizers.KoLeo(0.1)),
    "one of class weights": (losses.ArcFaceLoss, {}, None, regularizers.CenterInvariance(1e-3)),
}
# Of 16 samples on one process, and of 8 on two.
IN_CHUNKS = ("random triplets", "a learnt margin", "half the classes", "a miner that draws", "a regularizer")


class Recorder(Callback):
    """Keeps the indices of each batch, gathered in the order of the global batch."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.losses: list[float] = []
        self.scores: list[dict[str, float]] = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        self.batches.append(pl_module.all_gather(batch[2]).flatten().tolist())
        self.losses.append(float(outputs["loss"]))

    def on_validation_end(self, trainer, pl_module) -> None:
        scores = trainer.callback_metrics.items()
        self.scores.append({name: float(value) for name, value in scores if name.startswith("val/")})


class Projecting(MetricLearner):
    """With weights that are of no part."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.projection = torch.nn.Linear(16, 16)

    def compute_loss(self, embeddings, labels):
        return super().compute_loss(self.projection(embeddings), labels)


def fit(
    loss, arguments, miner, regularizer=None, chunk_size=None, epochs=0, rate=1.0, kind=MetricLearner, init="random"
):
    """One step without a validation, or epochs of five steps with one after each."""
    torch.manual_seed(1)
    classes = inspect.signature(loss).parameters.get("num_classes")
    needs_classes = classes is not None and classes.default is inspect.Parameter.empty

    def build(num_classes, embedding_size):
        torch.manual_seed(2)
        return loss(num_classes=num_classes, embedding_size=embedding_size, **arguments)

    learner = kind(
        trunk=TimmTrunk("test_resnet", weights=None),
        loss=build if needs_classes else loss(**arguments),
        embedding_size=16,
        embedder_init=init,
        miner=None if miner is None else miner(),
        regularizer=regularizer,
        optimizer=torch.optim.SGD,
        trunk_lr=rate,
        embedder_lr=rate,
        loss_lr=rate,
        weight_decay=0.0,
    )
    data = MetricDataModule(
        Glyphs(num_classes=40),
        batch_size=16,
        samples_per_class=4,
        steps_per_epoch=5 if epochs else 1,
        eval_batch_size=17,  # does not divide the validation fold
        transforms=ImageTransforms(crop_size=32, resize=32, scale=(0.6, 1.0), horizontal_flip=False),
    )
    recorder = Recorder()
    trainer = Trainer(
        accelerator="cpu",
        strategy="ddp" if int(sys.argv[2]) > 1 else "auto",
        devices=int(sys.argv[2]),
        precision="64-true",
        max_epochs=epochs or 1,
        limit_val_batches=1.0 if epochs else 0,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[recorder, *([] if chunk_size is None else [GradientCaching(chunk_size)])],
    )
    trainer.fit(learner, datamodule=data)
    return {
        "losses": recorder.losses,
        "batches": recorder.batches,
        "weights": {name: value.clone() for name, value in learner.state_dict().items()},
        "scores": recorder.scores,
    }


def _tell_whether_left(file: Path) -> None:
    file.write_text(json.dumps(not torch.distributed.is_initialized()))


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    # Registered first, called last.
    atexit.register(_tell_whether_left, Path(sys.argv[1]) / f"left_{sys.argv[2]}_{os.environ.get('RANK', 0)}.json")
    results = {name: fit(*case) for name, case in CASES.items()}
    results |= {f"{name}, in chunks": fit(*CASES[name], chunk_size=3) for name in IN_CHUNKS}
    means = {"weight_init": "class_means", "centers_per_class": 2}
    results["a whitened start"] = fit(losses.SoftTripleLoss, means, None, init="whitening")
    results["twenty steps"] = fit(losses.ContrastiveLoss, {}, None, epochs=4, rate=0.03)
    results["a module of its own"] = fit(losses.ContrastiveLoss, {}, None, kind=Projecting)
    results["a module of its own, another loss"] = fit(losses.TripletMarginLoss, {}, None, kind=Projecting)
    if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
        torch.save(results, Path(sys.argv[1]) / f"{sys.argv[2]}.pt")


if __name__ == "__main__":
    main()
