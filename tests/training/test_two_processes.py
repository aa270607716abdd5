"""Two gloo processes give the loss, gradients, batches and validation scores of one.

As a script it fits on this process group and writes `<folder>/<world size>.pt`: for each case the losses, the weights
after a step of SGD with rate 1 (so that their change is the gradient), the batches drawn, and the validation scores, of
rank 0. Each process writes `<folder>/left_<world size>_<rank>.json`: whether it had left its group when it ended.
"""

import atexit
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import python, torchrun
from lightning.pytorch import Callback
from small_fit import small_data, small_learner, small_trainer

from levelfield import losses, miners, regularizers
from levelfield.training.callbacks import GradientCaching
from levelfield.training.learner import MetricLearner
from levelfield.training.loss_factory import supplied_arguments

pytestmark = pytest.mark.processes


class Projecting(MetricLearner):
    """With weights that are of no part."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.projection = torch.nn.Linear(16, 16)

    def compute_loss(self, embeddings, labels):
        return super().compute_loss(self.projection(embeddings), labels)


# On images. tests/losses/test_over_processes.py has all losses, on points.
CASES: dict[str, dict[str, Any]] = {
    "ContrastiveLoss": {"loss": losses.ContrastiveLoss},
    "random triplets": {"loss": losses.TripletMarginLoss, "arguments": {"triplets_per_anchor": 2}},
    "a learnt margin": {"loss": losses.MarginLoss, "arguments": {"learn_beta": True}},
    "half the classes": {"loss": losses.ArcFaceLoss, "arguments": {"class_fraction": 0.5}},
    "a miner that draws": {"loss": losses.TripletMarginLoss, "miner": miners.DistanceWeightedMiner()},
    "a regularizer": {"loss": losses.ContrastiveLoss, "regularizer": regularizers.KoLeo(0.1)},
    "one of class weights": {"loss": losses.ArcFaceLoss, "regularizer": regularizers.CenterInvariance(1e-3)},
    "a whitened start": {
        "loss": losses.SoftTripleLoss,
        "arguments": {"weight_init": "class_means", "centers_per_class": 2},
        "embedder_init": "whitening",
    },
    "a module of its own": {"loss": losses.ContrastiveLoss, "kind": Projecting},
    "batch norm that trains": {"loss": losses.ContrastiveLoss, "freeze_batch_norm": False},
    "twenty steps": {"loss": losses.ContrastiveLoss, "epochs": 4, "rate": 0.03},
}
# Of 16 samples on one process, and of 8 on two.
IN_CHUNKS = ("random triplets", "a learnt margin", "half the classes", "a miner that draws", "a regularizer")


class Recorder(Callback):
    """Keeps the indices of each batch, gathered in the order of the global batch."""

    def __init__(self) -> None:
        self.kept: dict[str, list] = {"batches": [], "losses": [], "scores": [], "buffers": []}

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        self.kept["batches"].append(pl_module.all_gather(batch[2]).flatten().tolist())
        self.kept["losses"].append(float(outputs["loss"]))
        if trainer.world_size > 1:
            ddp = trainer.strategy.model
            self.kept["buffers"] = [ddp.broadcast_buffers, ddp.gradient_as_bucket_view]

    def on_validation_end(self, trainer, pl_module) -> None:
        scores = trainer.callback_metrics.items()
        self.kept["scores"].append({name: float(value) for name, value in scores if name.startswith("val/")})


def fit(loss, arguments=None, chunk_size=None, epochs=0, rate=1.0, **learner) -> dict[str, Any]:
    """One step without a validation, or epochs of five steps with one after each."""

    def build(num_classes, embedding_size):
        torch.manual_seed(2)
        return loss(num_classes=num_classes, embedding_size=embedding_size, **(arguments or {}))

    made = build if "num_classes" in supplied_arguments(loss) else loss(**(arguments or {}))
    rates = {"optimizer": torch.optim.SGD, "trunk_lr": rate, "embedder_lr": rate, "loss_lr": rate, "weight_decay": 0.0}
    module, recorder, processes = small_learner(made, **rates, **learner), Recorder(), int(sys.argv[2])
    # The validation's batches do not divide its fold.
    batches = {"batch_size": 16, "samples_per_class": 4, "eval_batch_size": 17, "steps_per_epoch": 5 if epochs else 1}
    where = {"devices": processes, "strategy": "ddp" if processes > 1 else "auto", "precision": "64-true"}
    callbacks = [recorder, *([] if chunk_size is None else [GradientCaching(chunk_size)])]
    trainer = small_trainer(*callbacks, **where, max_epochs=epochs or 1, limit_val_batches=1.0 if epochs else 0)
    trainer.fit(module, datamodule=small_data(**batches))
    return {**recorder.kept, "weights": {name: value.clone() for name, value in module.state_dict().items()}}


def main() -> None:
    warnings.simplefilter("ignore")
    folder, processes = Path(sys.argv[1]), sys.argv[2]
    left = folder / f"left_{processes}_{os.environ.get('RANK', 0)}.json"
    # Registered first, called last.
    atexit.register(lambda: left.write_text(json.dumps(not torch.distributed.is_initialized())))
    results = {name: fit(**case) for name, case in CASES.items()}
    results |= {f"{name}, in chunks": fit(**CASES[name], chunk_size=3) for name in IN_CHUNKS}
    if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
        torch.save(results, folder / f"{processes}.pt")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("fits")


@pytest.fixture(scope="module")
def results(folder: Path):
    for done in [python(__file__, folder, 1), *torchrun(__file__, folder, 2)]:
        assert done.returncode == 0, done.stderr[-3000:]
    return [torch.load(folder / f"{world_size}.pt") for world_size in (1, 2)]


def test_a_step_has_the_gradients_of_one_process(results):
    alone, together = results
    assert alone.keys() == together.keys() == {*CASES, *(f"{name}, in chunks" for name in IN_CHUNKS)}
    for name in alone.keys() - {"batch norm that trains"}:  # which sees half of the batch
        assert together[name]["batches"][0] == alone[name]["batches"][0], name
        assert together[name]["losses"] == pytest.approx(alone[name]["losses"], abs=1e-6), name
        for weight, value in alone[name]["weights"].items():
            difference = (together[name]["weights"][weight] - value).abs().max()
            assert difference <= 1e-6, f"{name}: {weight} differs by {difference}"


def test_no_step_sends_buffers_unless_batch_norm_trains(results):
    sent = {name: result["buffers"] for name, result in results[1].items()}
    assert sent.pop("batch norm that trains") == [True, True]
    assert {tuple(each) for each in sent.values()} == {(False, True)}


def test_chunks_have_the_gradients_of_the_batch_on_one_process_and_on_two(results):
    for result in results:
        for name in IN_CHUNKS:
            whole = result[name]["weights"]
            for weight, value in result[f"{name}, in chunks"]["weights"].items():
                assert (value - whole[weight]).abs().max() <= 1e-10, (name, weight)


def test_a_step_changes_the_weights_by_its_loss(results):
    weights = [
        results[0][name]["weights"]["embedder.linear.weight"] for name in ("one of class weights", "a regularizer")
    ]
    assert not torch.equal(*weights)


def test_epochs_draw_different_batches_and_validation_scores_are_equal(results):
    alone, together = (result["twenty steps"] for result in results)
    assert alone["batches"] == together["batches"]
    assert alone["batches"][0] != alone["batches"][-1]
    assert len(alone["scores"]) == len(together["scores"]) == 4
    assert alone["scores"][0].keys() == {"val/map_at_r", "val/r_precision", "val/precision_at_1"}
    for mine, scores in zip(together["scores"], alone["scores"], strict=True):
        assert mine == pytest.approx(scores, abs=1e-6)


def test_the_processes_part_before_they_end(results, folder: Path):
    """Else gloo's threads may free a tensor of an interpreter that has ended, and abort the process."""
    assert all(json.loads((folder / f"left_2_{rank}.json").read_text()) for rank in range(2))


if __name__ == "__main__":
    main()
