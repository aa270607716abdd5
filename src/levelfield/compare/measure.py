"""What a comparison costs here: the real Trainer on the device of the trainings, in all slots at once.

It also scores the features of each trunk on the validation classes.
"""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback

from levelfield.core.configuration import Config, merge
from levelfield.core.errors import OutOfMemory, UserError
from levelfield.core.processes import cores_here, free_memory
from levelfield.data.dataset import MetricDataset, SampleIndex
from levelfield.study.training_job import fixed_threads, memory_errors
from levelfield.study.untrained import EMBEDDING_SIZE, FEATURES, PCA, WHITENING, untrained_config
from levelfield.study.workers import Slots, attempt
from levelfield.training.build import Training

# Sides of training crops, in pixels; all are multiples of 16.
SIZES = (64, 80, 96, 112, 128, 144, 160, 192, 224)
LOOKED_AT, NATIVE = 64, 224  # number of images that are opened; side of images without files
STEPS, FEWEST_STEPS, EMBEDDED, BATCH = 25, 4, 3, 32  # of one measurement; a batch of embedding has 32 samples
MOST_SECONDS = 12.0  # for the steps of one measurement
STARTS = (PCA, WHITENING)  # of a head
BATCHES = {"cpu": (BATCH,), "gpu": (BATCH, 64, 128)}
BYTES = {"cpu": 2 << 30, "gpu": 6 << 30}  # memory of one slot


@dataclass(frozen=True)
class Machine:
    """Where the trainings run."""

    kind: str  # cpu or gpu
    slots: int  # trainings side by side
    cores: int  # that decode images
    threads: int = 1  # of a training


def machine_here(options: Mapping[str, Any], accelerator: str | None, threads: int = 1) -> Machine:
    """The slots of this machine: one per GPU, or one per core, as far as memory allows, or `workers` of the executor.

    The accelerator is that of the user; None takes a GPU if there is one.
    """
    kind = "cpu" if accelerator == "cpu" or not (accelerator or torch.cuda.is_available()) else "gpu"
    asked = options.get("workers")
    most = cores_here() // threads if kind == "cpu" else torch.cuda.device_count()
    slots = asked if isinstance(asked, int) else min(most, free_memory() // BYTES[kind])
    return Machine(kind, max(1, slots), cores_here(), threads)


@dataclass(frozen=True)
class Costs:
    """Seconds of a training: intercept and slope of a line over `batch * side**2`, in which texts have side 1."""

    step: tuple[float, float]  # of a training step
    sample: tuple[float, float]  # of embedding one sample, over `side**2`
    opened: float = 0.0  # seconds to open one image file, which the image cache does once
    batch: int = BATCH  # the largest for which there is memory
    load: float = 1.0  # seconds on the clock for one of a core: 2 if other programs take half of it

    def of(self, size: int, batch: int = BATCH) -> tuple[float, float]:
        """Seconds of a step, and of embedding a sample."""
        pixels = (size or 1) ** 2
        return self.step[0] + self.step[1] * batch * pixels, self.sample[0] + self.sample[1] * pixels


class Clock(Callback):
    """When steps and embedded batches ended, with loading. It stops a fit after `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.steps, self.samples = seconds, list[float](), list[tuple[float, int]]()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.steps.append(_now())
        trainer.should_stop = len(self.steps) > FEWEST_STEPS and self.steps[-1] - self.steps[0] > self.seconds

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        self.samples.append((_now(), 0))

    def on_predict_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, *index: Any) -> None:
        self.samples.append((_now(), len(outputs["embeddings"])))


def _now() -> float:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


def timed(config: Config, batch: int, seconds: float, threads: int) -> tuple[float, float, float]:
    """Seconds of a training step of the whole trunk and of embedding a sample, and `Costs.load`; a unit of a slot.

    Raises:
        UserError: the trunk takes other data.
        OutOfMemory: the batch is too large.
    """
    data = {"fold": "none", "features": False, "cache": False, "batch_size": batch, "eval_batch_size": BATCH}
    own = {
        "model": {"freeze_trunk": False, "embedder_init": "random"},
        "data": {**data, "steps_per_epoch": STEPS},
        "trainer": {"max_epochs": 1, "callbacks": [], "limit_predict_batches": EMBEDDED},
    }
    with fixed_threads(threads), memory_errors(), tempfile.TemporaryDirectory() as folder:
        training = Training(merge(config, own), Path(folder)).build()
        training.model.trunk.check_takes(training.datamodule.dataset)
        clock = Clock(seconds)
        training.trainer.callbacks.append(clock)  # type: ignore[attr-defined]
        before = time.perf_counter(), time.process_time()
        training.trainer.fit(training.model, datamodule=training.datamodule)
        load = (time.perf_counter() - before[0]) / (time.process_time() - before[1])
        training.trainer.predict(training.model, training.datamodule.train_samples())
    steps = [after - before for before, after in pairwise(clock.steps)]
    each = [(after - before) / count for (before, _), (after, count) in pairwise(clock.samples)]
    return median(steps[1:] or steps), median(each[1:] or each), load  # the first ones are slower


def costs_of(
    config: Config, sizes: Sequence[int], opened: float, machine: Machine, slots: Slots, seconds: float
) -> Costs:
    """The costs of a trunk, timed in all slots together, because trainings side by side slow each other down.

    The first and the last of `sizes` are measured, and the largest batch for which there is memory, each for some
    `seconds`. They open each image again, in `opened` seconds, which a training does not.
    """
    batches = BATCHES[machine.kind]
    steps, samples, loads = list[tuple[int, float]](), list[tuple[int, float]](), list[float]()

    def add(size: int, batch: int) -> None:
        call = merge(config, with_size(size)), batch, seconds, machine.threads
        times = in_slots(slots, timed, [call] * slots.number)
        step, sample, load = (median(each) for each in zip(*times, strict=True))
        pixels = (size or 1) ** 2
        steps.append((batch * pixels, max(step - opened * batch, step / 10)))
        samples.append((pixels, max(sample - opened, sample / 10)))
        loads.append(load)

    smallest, largest = (sizes[0], sizes[-1]) if sizes else (0, 0)
    for batch in reversed(batches):
        try:
            add(largest, batch)
            break
        except OutOfMemory:
            if batch == batches[0]:
                raise
    if (smallest, batches[0]) != (largest, batch):
        add(smallest, batches[0])
    load = max(1.0, fmean(loads)) if machine.kind == "cpu" else 1.0  # a GPU's work takes no time of a core
    return Costs(_line(steps), _line(samples), opened, batch, load)


def _line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Intercept and slope through the smallest and the largest point, none below 0; through 0 for one point."""
    (low, first), (high, last) = min(points), max(points)
    slope = max((last - first) / (high - low), 0.0) if high > low else last / high
    return max(last - slope * high, 0.0), slope


def in_slots(slots: Slots, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> list[Any]:
    """What a function returns for the arguments of each call, in the slots that are ready, all at once.

    Raises:
        UserError: a call fails.
    """
    while not (ready := [slot for slot in range(slots.number) if slots.ready(slot)]):
        time.sleep(1)
    futures = [slots.submit(slot, attempt, function, *call) for slot, call in zip(cycle(ready), calls, strict=False)]
    outcomes = [future.result() for future in futures]
    for outcome in outcomes:
        if outcome.kind != "done":
            raise (OutOfMemory if outcome.kind == "memory" else UserError)(outcome.value)
    return [outcome.value for outcome in outcomes]


def look(dataset: MetricDataset, index: SampleIndex) -> tuple[int, float]:
    """The shorter side of images in pixels, and the seconds to decode one: medians over evenly spaced files."""
    if dataset.modality == "text" or dataset.file_of(index.keys[0]) is None:
        return NATIVE, 0.0
    sides, times = list[int](), list[float]()
    for position in np.linspace(0, len(index.keys) - 1, min(LOOKED_AT, len(index.keys))).astype(int):
        started = time.perf_counter()
        image: Any = dataset.load(index.keys[position])
        times.append(time.perf_counter() - started)
        sides.append(min(image.size))
    return int(median(sides)), median(times)


def scores(config: Config, folds: int, blocks: int, threads: int) -> tuple[dict[str, float], int, int]:
    """Validation MAP@R of a trunk's features and of each start of a head (means over folds), and the lengths of
    features and embeddings; a unit of a slot."""
    shapes = list[tuple[int, int]]()

    def score(kind: str, fold: int) -> float:
        of_fold = untrained_config(merge(config, {"data": {"fold": fold, "num_folds": blocks}}), kind, folds)
        with tempfile.TemporaryDirectory() as folder:
            training = Training(of_fold, Path(folder), trunks=Path(trunks)).build()
            training.trainer.fit(training.model, datamodule=training.datamodule)
            shapes.append((len(training.datamodule.train_subset), training.model.trunk.num_features))
            return training.best_score

    with fixed_threads(threads), tempfile.TemporaryDirectory() as trunks:
        found = {FEATURES: fmean(score(FEATURES, fold) for fold in range(folds))}
        size = min(EMBEDDING_SIZE, *map(min, shapes))
        for start in STARTS:
            found[start] = fmean(score(f"{start}{size}", fold) for fold in range(folds))
    return found, shapes[0][1], size


def with_size(size: int) -> Config:
    """The settings for training crops of `size` pixels, which a trunk may override; empty for 0."""
    return {} if not size else {"data": {"transforms": {"crop_size": size, "resize": round(size * 8 / 7)}}}
