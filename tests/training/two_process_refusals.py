"""What goes wrong on one process is raised by both; run by `test_two_process_refusals.py`.

Writes `<folder>/<rank>.json`: for each case the exception's class and message.
"""

import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import torch
from lightning.pytorch import Trainer
from torch.utils.data import DataLoader, TensorDataset

from levelfield.data.datamodule import MetricDataModule
from levelfield.data.datasets import Glyphs
from levelfield.data.transforms import ImageTransforms
from levelfield.losses import ContrastiveLoss
from levelfield.models import TimmTrunk
from levelfield.training.callbacks import record_opening
from levelfield.training.learner import MetricLearner

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
    """Its tests have no `RecordOpening`."""

    def configure_callbacks(self) -> list:
        return []


def learner(kind=MetricLearner) -> MetricLearner:
    torch.manual_seed(0)
    return kind(TimmTrunk("test_resnet", weights=None), loss=ContrastiveLoss(), embedding_size=8)


def trainer(folder: str = "") -> Trainer:
    return Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=2,
        max_epochs=1,
        default_root_dir=str(Path(sys.argv[1]) / folder),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def loader(samples: TensorDataset) -> DataLoader:
    return DataLoader(samples, batch_size=5)


def data(stage: str = "") -> MetricDataModule:
    transforms = ImageTransforms(crop_size=32, resize=32, horizontal_flip=False)
    module = MetricDataModule(Glyphs(num_classes=16), num_workers=0, fold="none", transforms=transforms)
    if stage:
        module.setup(stage)
    return module


def no_ledger() -> None:
    """Only the first process writes the line, and the other waits for it."""
    with mock.patch.dict(os.environ, {"LEVELFIELD_CACHE": __file__}):
        trainer().test(learner(Forgetful), data(), verbose=False)


def broken_test() -> None:
    """Only the first process hashes what is tested."""
    with mock.patch(f"{record_opening.__name__}.content_hash", side_effect=RuntimeError("no hash of these weights")):
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
    torch.set_num_threads(1)
    raised = {}
    for name, case in CASES.items():
        try:
            case()
        except Exception as error:
            raised[name] = [type(error).__name__, str(error)]
    rank = torch.distributed.get_rank()
    (Path(sys.argv[1]) / f"{rank}.json").write_text(json.dumps(raised))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
