"""Two gloo processes give the loss, gradients, batches and scores of one; what one of them finds, both raise.

As a script writes `<folder>/<world size>_<rank>.pt`: of each case in FITS losses, weights (after a step of SGD, rate 1,
their change is the gradient), batches and scores; of each case in CASES, on two processes alone, class and message of
its exception. `<folder>/left_<world size>_<rank>` says whether the process had left its group when it ended.
"""

import atexit
import json
import os
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from forked import python, torchrun
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging, LambdaCallback
from small_fit import small_data, small_learner, small_trainer
from torch.utils.data import DataLoader, TensorDataset

from levelfield import losses
from levelfield.data.datamodule import MetricDataModule
from levelfield.training.callbacks import record_evaluation
from levelfield.training.learner import MetricLearner

pytestmark = pytest.mark.processes
RANK = int(os.environ.get("RANK", 0))
IMAGES, LABELS = torch.rand(20, 3, 32, 32, generator=torch.Generator().manual_seed(0)), torch.arange(20) // 4
PAIRS = DataLoader(TensorDataset(IMAGES, LABELS), batch_size=5)
TRIPLES = DataLoader(TensorDataset(IMAGES, LABELS, torch.arange(20)), batch_size=5)
CENTERS = partial(losses.SoftTripleLoss, weight_init="class_means", centers_per_class=2)
# On images. tests/losses/test_over_processes.py has all losses, miners and regularizers, on points.
FITS: dict[str, dict[str, Any]] = {
    "a whitened start": {"loss": CENTERS, "embedder_init": "whitening"},
    "an average": {"loss": losses.ContrastiveLoss, "epochs": 2, "rate": 0.03, "average": True},
    "twenty steps": {"loss": losses.ContrastiveLoss, "epochs": 4, "rate": 0.03},
}


def fit(processes, epochs=0, rate=1.0, average=False, **learner) -> dict[str, Any]:
    """One step without a validation, or epochs of five steps with one after each."""
    kept: dict[str, list] = {"batches": [], "losses": [], "scores": []}

    def note(trainer, module, outputs, batch, *_) -> None:
        kept["batches"].append(module.all_gather(batch[2]).flatten().tolist())  # in the order of the global batch
        kept["losses"].append(float(outputs["loss"]))

    def note_scores(trainer, module) -> None:
        scores = trainer.callback_metrics.items()
        kept["scores"].append({name: float(value) for name, value in scores if name.startswith("val/")})

    rates = dict.fromkeys(("trunk_lr", "embedder_lr", "loss_lr"), rate)
    module = small_learner(optimizer=torch.optim.SGD, weight_decay=0.0, **rates, **learner)
    # The validation's batches do not divide its fold.
    batches = {"batch_size": 16, "samples_per_class": 4, "eval_batch_size": 17, "steps_per_epoch": 5 if epochs else 1}
    where = {"devices": processes, "strategy": "ddp" if processes > 1 else "auto", "precision": "64-true"}
    averages = [EMAWeightAveraging(decay=0.9)] * average
    limits = {"max_epochs": epochs or 1, "limit_val_batches": 1.0 if epochs else 0}
    recorder = LambdaCallback(on_train_batch_end=note, on_validation_end=note_scores)
    trainer = small_trainer(recorder, *averages, **where, **limits)
    trainer.fit(module, datamodule=small_data(**batches))
    return {**kept, "weights": {name: value.clone() for name, value in module.state_dict().items()}}


class BreaksOnTheSecond(MetricLearner):
    """Its embeddings are not finite on the second process."""

    def forward(self, samples):
        embeddings = super().forward(samples)
        return embeddings * float("nan") if self.trainer.global_rank == 1 else embeddings


# Its tests have no `RecordEvaluation`.
Forgetful = type("Forgetful", (MetricLearner,), {"configure_callbacks": lambda self: []})


def learner(kind=MetricLearner) -> MetricLearner:
    return small_learner(kind=kind, embedding_size=8)


def two(folder: str = "") -> Trainer:
    return small_trainer(devices=2, strategy="ddp", default_root_dir=str(Path(sys.argv[1]) / folder))


def run_test(samples: Any, kind: type[MetricLearner] = MetricLearner, folder: str = "") -> None:
    two(folder).test(learner(kind), samples, verbose=False)


def data() -> MetricDataModule:
    module = small_data(16, num_workers=0, fold="none")
    module.setup("test")
    return module


def no_ledger() -> None:
    """Only the first process writes the line, and the other waits for it."""
    with mock.patch.dict(os.environ, {"LEVELFIELD_CACHE": __file__}):
        run_test(data(), Forgetful)


def broken_test() -> None:
    """Only the first process hashes what is tested."""
    with mock.patch(f"{record_evaluation.__name__}.content_hash", side_effect=RuntimeError("no hash of these weights")):
        run_test(TRIPLES, folder="broken")


def same_samples() -> None:
    """A loader that gives both processes the same samples; tells what was warned of."""
    fits = two()
    fits._accelerator_connector.use_distributed_sampler = False
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        fits.fit(learner(), TRIPLES)
    raise RuntimeError(" ".join(str(each.message) for each in found))


def two_loaders() -> None:
    """Each has the scores that it has alone."""
    loaders = [TRIPLES, DataLoader(TensorDataset(IMAGES[:12].flip(0), LABELS[:12], torch.arange(12)), batch_size=5)]
    found = two().validate(learner(), loaders, verbose=False)
    alone = [two().validate(learner(), loader, verbose=False)[0] for loader in loaders]
    assert [[*scores.values()] for scores in found] == [[*scores.values()] for scores in alone]


CASES: dict[str, Callable[[], object]] = {
    "validation": lambda: two().validate(learner(BreaksOnTheSecond), TRIPLES, verbose=False),
    "training": lambda: two().fit(learner(BreaksOnTheSecond), PAIRS),
    "no index": lambda: two().validate(learner(), PAIRS, verbose=False),
    "first test": lambda: run_test(TRIPLES),
    "second test": lambda: run_test(TRIPLES),
    "own callbacks": lambda: run_test(data(), Forgetful),
    "own callbacks, a loader": lambda: run_test(data().test_dataloader(), Forgetful),
    "with a datamodule": lambda: run_test(data(), folder="datamodule"),
    "same samples": same_samples,
    "two loaders": two_loaders,
    "no ledger": no_ledger,
    "broken test": broken_test,
}
RAISED = {
    "validation": ("TrainingFailed", "--model.embedder_lr"),
    "training": ("TrainingFailed", "step 0"),
    "no index": ("UserError", "(samples, labels, index)"),
    "broken test": ("RuntimeError", "no hash of these weights"),
}


def main(folder: Path, processes: int) -> None:
    warnings.simplefilter("ignore")
    left = folder / f"left_{processes}_{RANK}"
    # Registered first, called last.
    atexit.register(lambda: left.write_text(str(not torch.distributed.is_initialized())))
    found: dict[str, Any] = {}
    for name, case in CASES.items() if processes == 2 else ():
        try:
            case()
        except Exception as error:
            found[name] = type(error).__name__, str(error)
    found |= {name: fit(processes, **case) for name, case in FITS.items()}
    torch.save(found, folder / f"{processes}_{RANK}.pt")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    found = tmp_path_factory.mktemp("fits")
    for done in [python(__file__, found, 1), *torchrun(__file__, found, 2, LEVELFIELD_CACHE=str(found / "cache"))]:
        assert done.returncode == 0, done.stderr[-3000:]
    return found


@pytest.fixture
def results(folder: Path) -> list[dict[str, Any]]:
    """Of one process, and of each of two."""
    return [torch.load(folder / f"{name}.pt") for name in ("1_0", "2_0", "2_1")]


def test_a_step_has_the_gradients_of_one_process(results):
    alone, together, _ = results
    assert alone.keys() == FITS.keys()
    for name in alone:
        assert together[name]["batches"][0] == alone[name]["batches"][0], name
        assert together[name]["losses"] == pytest.approx(alone[name]["losses"], abs=1e-6), name
        for weight, value in alone[name]["weights"].items():
            difference = (together[name]["weights"][weight] - value).abs().max()
            assert difference <= 1e-6, f"{name}: {weight} differs by {difference}"


@pytest.mark.parametrize("name", ["an average", "twenty steps"])
def test_epochs_draw_different_batches_and_validation_scores_are_equal(name, results):
    alone, together = (result[name] for result in results[:2])
    assert alone["batches"] == together["batches"]
    assert alone["batches"][0] != alone["batches"][-1]
    assert len(alone["scores"]) == len(together["scores"]) == FITS[name]["epochs"]
    for mine, scores in zip(together["scores"], alone["scores"], strict=True):
        assert mine == pytest.approx(scores, abs=1e-6)


def test_both_processes_raise_part_and_wait_for_no_ledger_that_cannot_be_written(results, folder: Path) -> None:
    for found in results[1:]:
        for case, (kind, message) in RAISED.items():
            assert (found[case][0], message in found[case][1]) == (kind, True), found[case]
        assert __file__.rpartition("/")[2] in found["no ledger"][1]
        assert found.keys() == {*FITS, *RAISED, "same samples", "no ledger"}, "nothing else is raised"
    assert [found["no ledger"][0] for found in results[1:]] == ["FileRefused", "UserError"]
    warned = ["train on the same samples" in found["same samples"][1] for found in results[1:]]
    assert warned == [True, False], "once"
    # Else gloo's threads may free a tensor of an interpreter that has ended, and abort the process.
    assert [(folder / f"left_2_{rank}").read_text() for rank in range(2)] == ["True"] * 2


def test_one_process_writes_the_line_of_each_test(folder: Path) -> None:
    """Two tests of a loader of one's own, which share a folder; three of glyphs, of which one has a folder's copy."""

    def lines(path: Path) -> list[dict]:
        return [json.loads(line) for line in (path / "ledger.jsonl").read_text().splitlines()]

    every = lines(folder / "cache" / "evaluations")
    of_glyphs = [(line["num_samples"], line["by"]) for line in every if line.get("num_samples")]
    assert of_glyphs == [*[(8 * 16, "test_dataloader")] * 2, (8 * 16, "trainer.test")]  # 8 letters in 16 typefaces
    copies = [[line["event"] for line in lines(path)] for path in (folder, folder / "datamodule")]
    assert copies == [["evaluated", "finished"] * 2, ["evaluated", "finished"]]


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
