"""Of two processes none is left waiting for the other: what one finds, both raise.

As a script it writes `<folder>/<rank>.json`: for each case the exception's class and message.
"""

import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
import torch
from forked import torchrun
from lightning.pytorch import Trainer
from small_fit import small_data, small_learner, small_trainer
from torch.utils.data import DataLoader, TensorDataset

from levelfield.data.datamodule import MetricDataModule
from levelfield.training.callbacks import record_evaluation
from levelfield.training.learner import MetricLearner

pytestmark = pytest.mark.processes
IMAGES, LABELS = torch.rand(20, 3, 32, 32, generator=torch.Generator().manual_seed(0)), torch.arange(20) // 4
PAIRS = TensorDataset(IMAGES, LABELS)
TRIPLES = TensorDataset(IMAGES, LABELS, torch.arange(20))


class BreaksOnTheSecond(MetricLearner):
    """Its embeddings are not finite on the second process."""

    def forward(self, samples):
        embeddings = super().forward(samples)
        return embeddings * float("nan") if self.trainer.global_rank == 1 else embeddings


class Views(MetricLearner):
    """Has its own form of batches."""

    def training_step(self, batch, batch_idx):
        view, other, labels, _ = batch
        return self.objective(self(torch.cat([view, other])), labels.repeat(2))


class Forgetful(MetricLearner):
    """Its tests have no `RecordEvaluation`."""

    def configure_callbacks(self) -> list:
        return []


def learner(kind=MetricLearner) -> MetricLearner:
    return small_learner(kind=kind, embedding_size=8)


def trainer(folder: str = "") -> Trainer:
    return small_trainer(devices=2, strategy="ddp", default_root_dir=str(Path(sys.argv[1]) / folder))


def loader(samples: TensorDataset) -> DataLoader:
    return DataLoader(samples, batch_size=5)


def data(stage: str = "") -> MetricDataModule:
    module = small_data(16, num_workers=0, fold="none")
    if stage:
        module.setup(stage)
    return module


def no_ledger() -> None:
    """Only the first process writes the line, and the other waits for it."""
    with mock.patch.dict(os.environ, {"LEVELFIELD_CACHE": __file__}):
        trainer().test(learner(Forgetful), data(), verbose=False)


def broken_test() -> None:
    """Only the first process hashes what is tested."""
    with mock.patch(f"{record_evaluation.__name__}.content_hash", side_effect=RuntimeError("no hash of these weights")):
        trainer(folder="broken").test(learner(), loader(TRIPLES), verbose=False)


def same_samples() -> None:
    """A loader that gives both processes the same samples; tells what was warned of."""
    fits = trainer()
    fits._accelerator_connector.use_distributed_sampler = False
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        fits.fit(learner(), loader(TRIPLES))
    raise RuntimeError(" ".join(str(each.message) for each in found))


def two_loaders() -> None:
    """Each has the scores that it has alone."""
    sets = TRIPLES, TensorDataset(IMAGES[:12].flip(0), LABELS[:12], torch.arange(12))
    found = trainer().validate(learner(), [loader(each) for each in sets], verbose=False)
    for scores, samples in zip(found, sets, strict=True):
        (alone,) = trainer().validate(learner(), loader(samples), verbose=False)
        assert list(scores.values()) == list(alone.values())


CASES: dict[str, Callable[[], object]] = {
    "validation": lambda: trainer().validate(learner(BreaksOnTheSecond), loader(TRIPLES), verbose=False),
    "training": lambda: trainer().fit(learner(BreaksOnTheSecond), loader(PAIRS)),
    "no index": lambda: trainer().validate(learner(), loader(PAIRS), verbose=False),
    "first test": lambda: trainer().test(learner(), loader(TRIPLES), verbose=False),
    "second test": lambda: trainer().test(learner(), loader(TRIPLES), verbose=False),
    "own callbacks": lambda: trainer().test(learner(Forgetful), data(), verbose=False),
    "own callbacks, a loader": lambda: trainer().test(
        learner(Forgetful), data("test").test_dataloader(), verbose=False
    ),
    "with a datamodule": lambda: trainer("datamodule").test(learner(), data(), verbose=False),
    "same samples": same_samples,
    "batches of another form": lambda: trainer().fit(
        learner(Views), loader(TensorDataset(IMAGES, IMAGES, LABELS, LABELS))
    ),
    "two loaders": two_loaders,
    "no ledger": no_ledger,
    "broken test": broken_test,
}


def main() -> None:
    warnings.simplefilter("ignore")
    raised = {}
    for name, case in CASES.items():
        try:
            case()
        except Exception as error:
            raised[name] = [type(error).__name__, str(error)]
    rank = torch.distributed.get_rank()
    (Path(sys.argv[1]) / f"{rank}.json").write_text(json.dumps(raised))
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("refusals")


@pytest.fixture(scope="module")
def raised(folder: Path) -> list[dict[str, list[str]]]:
    for done in torchrun(__file__, folder, seconds=120, LEVELFIELD_CACHE=str(folder / "cache")):
        assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


BOTH = {
    "validation": ("TrainingFailed", "--model.embedder_lr"),
    "training": ("TrainingFailed", "step 0"),
    "no index": ("UserError", "(samples, labels, index)"),
    "broken test": ("RuntimeError", "no hash of these weights"),
}


@pytest.mark.parametrize("case", BOTH)
def test_both_processes_raise(raised, case: str) -> None:
    for kind, message in (of_process[case] for of_process in raised):
        assert (kind, BOTH[case][1] in message) == (BOTH[case][0], True), message


def test_a_loader_that_ignores_its_rank_is_warned_of_once_and_nothing_else_is_raised(raised) -> None:
    first, second = (of_process["same samples"][1] for of_process in raised)
    assert "train on the same samples" in first
    assert "train on the same samples" not in second
    assert all(of_process.keys() == {*BOTH, "same samples", "no ledger"} for of_process in raised)


def test_none_waits_for_a_ledger_that_cannot_be_written(raised) -> None:
    assert [of_process["no ledger"][0] for of_process in raised] == ["FileRefused", "UserError"]
    assert all("test_two_process_refusals.py" in of_process["no ledger"][1] for of_process in raised)


def test_one_process_writes_the_line_of_each_test(raised, folder: Path) -> None:
    """Two tests of a loader of one's own, which share a folder; three of glyphs, of which one has a folder's copy."""

    def lines(path: Path) -> list[dict]:
        return [json.loads(line) for line in path.read_text().splitlines()]

    every = lines(folder / "cache" / "evaluations" / "ledger.jsonl")
    of_glyphs = [(line["num_samples"], line["by"]) for line in every if line.get("num_samples")]
    assert of_glyphs == [*[(8 * 16, "test_dataloader")] * 2, (8 * 16, "trainer.test")]  # 8 letters in 16 typefaces
    copies = [[line["event"] for line in lines(path / "ledger.jsonl")] for path in (folder, folder / "datamodule")]
    assert copies == [["evaluated", "finished"] * 2, ["evaluated", "finished"]]


if __name__ == "__main__":
    main()
