"""What a comparison costs here: the real Trainer on the device of the trainings, in all slots at once.

It also scores the features of each trunk on the validation classes.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from lightning.pytorch import Callback
from PIL import Image
from torch.nn.functional import normalize

from levelfield.core.configuration import Config, merge
from levelfield.core.errors import OutOfMemory, UserError
from levelfield.data.dataset import MetricDataset, SampleIndex
from levelfield.metrics import retrieval_metrics
from levelfield.metrics.definitions import SELECTED_BY
from levelfield.models import LinearEmbedder
from levelfield.models.embedder_init import EmbedderInit, start_embedder
from levelfield.study.training_job import fixed_threads, memory_errors
from levelfield.study.untrained import FEATURES
from levelfield.study.workers import Slots, attempt
from levelfield.training.build import Training
from levelfield.training.embed import TrunkExtractor

# Sides of training crops, in pixels; all are multiples of 16.
SIZES = (64, 80, 96, 112, 128, 144, 160, 192, 224)
LOOKED_AT = 200  # number of images whose headers are read for their size
NATIVE = 224  # side of images without files
STEPS, FEWEST_STEPS, BATCHES, BATCH = 25, 4, 3, 32  # of one measurement; a batch of embedding has 32 samples
MOST_SECONDS = 12.0  # for the steps of one measurement
OPENED = 16  # number of images
EMBEDDING_SIZE = 128
STARTS: tuple[EmbedderInit, ...] = ("pca", "whitening")


@dataclass(frozen=True)
class Costs:
    """Seconds of a training: intercept and slope of a line over `batch * side**2`, in which texts have side 1.

    Attributes:
        step: Of a training step.
        sample: Of embedding one sample, over `side**2`.
        opened: Seconds to open one image file, which the image cache does once.
        batch: The largest batch for which there is memory.
        load: Seconds on the clock for one of a core: 2 if other programs take half of it.
    """

    step: tuple[float, float]
    sample: tuple[float, float]
    opened: float = 0.0
    batch: int = BATCH
    load: float = 1.0

    def of(self, size: int | None, batch: int = BATCH) -> tuple[float, float]:
        """Seconds of a step, and of embedding a sample."""
        pixels = (size or 1) ** 2
        return self.step[0] + self.step[1] * batch * pixels, self.sample[0] + self.sample[1] * pixels


class Clock(Callback):
    """When steps and embedded batches ended, with loading. It stops a fit after `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.steps, self.samples = seconds, list[float](), list[tuple[float, int]]()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.steps.append(_now(trainer))
        trainer.should_stop = len(self.steps) > FEWEST_STEPS and self.steps[-1] - self.steps[0] > self.seconds

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        self.samples.append((_now(trainer), 0))

    def on_predict_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self.samples.append((_now(trainer), len(outputs["embeddings"])))


def _now(trainer: Any) -> float:
    if trainer.strategy.root_device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def timed(config: Config, batch: int, seconds: float, threads: int) -> tuple[float, float, float]:
    """Seconds of a training step of the whole trunk and of embedding a sample, and `Costs.load`; a unit of a slot.

    Raises:
        UserError: the trunk takes other data.
        OutOfMemory: the batch is too large.
    """
    own = {
        "model": {"freeze_trunk": False, "embedder_init": "random"},
        "data": {"fold": "none", "features": False, "cache": False, "batch_size": batch, "steps_per_epoch": STEPS},
        "trainer": {"max_epochs": 1, "callbacks": [], "limit_predict_batches": BATCHES},
    }
    with fixed_threads(threads), memory_errors(), tempfile.TemporaryDirectory() as folder:
        training = Training(merge(merge(config, own), {"data": {"eval_batch_size": BATCH}}), Path(folder)).build()
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
    config_at: Callable[[int | None], Config],
    sizes: Sequence[int],
    batches: Sequence[int],
    opened: float,
    slots: Slots,
    threads: int,
    seconds: float,
) -> Costs:
    """The costs of a trunk, timed in all slots together, because trainings side by side slow each other down.

    Args:
        config_at: The configuration at an image size.
        sizes: Possible sides of crops, ascending; empty if there is no choice. The first and the last are measured.
        batches: Possible batch sizes, ascending; the largest for which there is memory is measured.
        opened: Seconds to open an image, which the measurement repeats for each sample and a training does not.
        seconds: For the steps of one measurement.
    """

    loads = list[float]()

    def point(size: int | None, batch: int) -> tuple[int, int, float, float]:
        times = in_all(slots, timed, config_at(size), batch, seconds, threads)
        step, sample, load = (median(each) for each in zip(*times, strict=True))
        loads.append(load)
        pixels = (size or 1) ** 2
        return batch * pixels, pixels, max(step - opened * batch, step / 10), max(sample - opened, sample / 10)

    smallest, largest = (min(sizes, default=None), batches[0]), max(sizes, default=None)
    found = [point(*smallest)]
    for batch in reversed(batches):
        if (largest, batch) == smallest:
            break
        try:
            found.append(point(largest, batch))
            break
        except OutOfMemory:
            if batch == batches[0]:
                raise
    steps, samples = [(work, step) for work, _, step, _ in found], [(pixels, sample) for _, pixels, _, sample in found]
    on_gpu = config_at(smallest[0])["trainer"].get("accelerator") != "cpu"  # whose work takes no time of a core
    return Costs(_line(steps), _line(samples), opened, batch, 1.0 if on_gpu else max(1.0, fmean(loads)))


def _line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Intercept and slope through the smallest and the largest point, none below 0; through 0 for one point."""
    (low, first), (high, last) = min(points), max(points)
    slope = max((last - first) / (high - low), 0.0) if high > low else last / high
    return max(last - slope * high, 0.0), slope


def in_all(slots: Slots, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What a function returns in each slot, all at once.

    Raises:
        UserError: it fails in one.
    """
    while not (ready := [slot for slot in range(slots.number) if slots.ready(slot)]):
        time.sleep(1)
    return [result_of(future) for future in [slots.submit(slot, attempt, function, *arguments) for slot in ready]]


def result_of(future: Any) -> Any:
    """The value of a unit.

    Raises:
        UserError: it failed.
    """
    outcome = future.result()
    if outcome.kind != "done":
        raise (OutOfMemory if outcome.kind == "memory" else UserError)(outcome.value)
    return outcome.value


def sizes_of(dataset: MetricDataset, index: SampleIndex, config: Config) -> tuple[tuple[int, ...], str]:
    """Possible sides of crops, and the reason for the largest."""
    if dataset.modality == "text" or config["data"].get("transforms", {}).get("crop_size") is not None:
        return (), ""  # the trunk's file or an option sets it
    positions = torch.linspace(0, len(index.keys) - 1, min(LOOKED_AT, len(index.keys))).long().tolist()
    sides = []
    for position in positions:
        key = index.keys[position]
        file = dataset.file_of(key)
        if file is not None:
            image: Any = dataset.load(key) if file.suffix.lower() == ".parquet" else Image.open(file)
            with image:
                sides.append(min(image.size))
    short = int(median(sides)) if sides else NATIVE
    largest = min([size for size in SIZES if size >= short] or [SIZES[-1]])
    return tuple(size for size in SIZES if size <= largest), f"their shorter side has {short} px in the median"


def seconds_to_open(dataset: MetricDataset, index: SampleIndex) -> float:
    """Seconds to decode one image file; 0 for texts and drawn images."""
    if dataset.modality == "text" or dataset.file_of(index.keys[0]) is None:
        return 0.0
    times = []
    for key in index.keys[:: max(1, len(index.keys) // OPENED)]:
        started = time.perf_counter()
        dataset.load(key)
        times.append(time.perf_counter() - started)
    return median(times)


def scores(config: Config, folds: int, blocks: int, threads: int) -> tuple[dict[str, float], int, int]:
    """Validation MAP@R of a trunk's features and of each start of a head (means over folds), and the lengths of
    features and embeddings; a unit of a slot."""
    found: dict[str, list[float]] = {kind: [] for kind in (FEATURES, *STARTS)}
    shapes: list[tuple[int, int]] = []
    with fixed_threads(threads), tempfile.TemporaryDirectory() as folder:
        for fold in range(folds):
            training = Training(merge(config, {"data": {"fold": fold, "num_folds": blocks}}), Path(folder)).build()
            data = training.datamodule
            data.setup("fit")
            data.use_features(TrunkExtractor(training.model.trunk, training.trainer.strategy.root_device))
            train_NF, val_NF = data.evaluated(data.train_subset), data.evaluated(data.val_subset)
            train_labels, val_labels = (torch.from_numpy(part.labels) for part in (data.train_subset, data.val_subset))
            shapes.append((len(train_NF), train_NF.shape[1]))
            size = min(EMBEDDING_SIZE, *shapes[-1])
            embeddings = {FEATURES: val_NF}
            for start in STARTS:
                head = LinearEmbedder(train_NF.shape[1], size)
                start_embedder(head, start, train_NF, train_labels)
                embeddings[start] = head(val_NF).detach()
            groups = None if data.val_subset.groups is None else torch.from_numpy(data.val_subset.groups)
            for kind, values in found.items():
                result = retrieval_metrics(
                    normalize(embeddings[kind]), val_labels, metrics=(SELECTED_BY,), groups=groups
                )
                values.append(float(result[SELECTED_BY]))
    return {kind: fmean(values) for kind, values in found.items()}, shapes[0][1], min(EMBEDDING_SIZE, *map(min, shapes))
