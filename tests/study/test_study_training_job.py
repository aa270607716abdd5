"""A training that was killed goes on to the same bytes; one that fails says why."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from levelfield.study.configuration import merge
from levelfield.study.jobs import Job
from levelfield.study.last_checkpoint import LAST
from levelfield.study.spec import StudySpec, load_spec
from levelfield.study.training_job import train

BYTES = ("best.ckpt", "metrics.csv", "config.yaml")
EARLY_STOPPING = {
    "class_path": "EarlyStopping",
    "init_args": {"monitor": "val/map_at_r", "mode": "max", "patience": 2, "min_delta": 1.0},
}
CASES: dict[str, dict[str, Any]] = {
    "contrastive": {},
    "class weights": {"model": {"loss": "ArcFaceLoss"}, "data": {"samples_per_class": 1, "num_workers": 1}},
    "memory": {
        "model": {
            "loss": {
                "class_path": "CrossBatchMemory",
                "init_args": {
                    "loss": {"class_path": "ContrastiveLoss"},
                    "embedding_size": 16,
                    "memory_size": 40,
                },
            }
        }
    },
    "schedule": {
        "model": {
            "freeze_batch_norm": False,
            "miner": "levelfield.miners.DistanceWeightedMiner",
            "loss": "TripletMarginLoss",
            "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1, "momentum": 0.9}},
            "lr_scheduler": {"class_path": "torch.optim.lr_scheduler.StepLR", "init_args": {"step_size": 1}},
        }
    },
    "early stopping": {
        "trainer": {"max_epochs": 20, "check_val_every_n_epoch": 2, "callbacks": [EARLY_STOPPING]},
    },
}


class KilledError(Exception):
    pass


@pytest.fixture
def spec(toy_file: Path) -> StudySpec:
    return load_spec(toy_file)


JOB = Job("contrastive", "run", 0, 0)


def config_of(spec: StudySpec, changes: dict[str, Any]) -> dict[str, Any]:
    of_the_job = {"data": {"fold": 0, "num_folds": 2}, "trainer": {"max_epochs": 4}, "seed_everything": 7}
    return merge(merge(spec.methods[JOB.method], of_the_job), changes)


def ignore(*_: Any) -> None:
    pass


def at_step(number: int) -> Callable[[int, int], None]:
    def raise_there(step: int, steps: int) -> None:
        if step == number:
            raise KilledError

    return raise_there


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / JOB.path).iterdir() if path.is_file()}


@pytest.mark.parametrize("case", CASES)
def test_a_training_stopped_anywhere_goes_on_to_the_same_bytes(case: str, spec: StudySpec, tmp_path: Path) -> None:
    config = config_of(spec, CASES[case])
    undisturbed = train(tmp_path / "undisturbed", spec, JOB, config, ignore)
    folder = tmp_path / "killed"
    seen = []
    for step in (1, 3, 6):
        with pytest.raises(KilledError):
            train(folder, spec, JOB, config, at_step(step), checkpoint_seconds=0)
        assert (folder / JOB.path / LAST).exists() == (step > 2)
    result = train(folder, spec, JOB, config, lambda step, steps: seen.append((step, steps)), checkpoint_seconds=0)
    last = 12 if case == "early stopping" else 8
    assert [step for step, _ in seen] == list(range(5, last + 1)), "it went on from the end of the second epoch"
    assert contents(folder) == contents(tmp_path / "undisturbed")
    for key in ("validation", "best_epoch", "data"):
        assert result[key] == undisturbed[key]
