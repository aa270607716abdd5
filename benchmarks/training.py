"""Images a second of training beside the bare model and a minimal loop.

    python benchmarks/training.py                                   # the last line says how long it took
    python benchmarks/training.py --threads 1 --sides 64

EfficientNet-Lite0 with random weights, batch norm in eval mode, a linear layer to 128 and the multi-similarity loss on
batches of 8 classes x 4 of Grocery Store (LEVELFIELD_DATA) in every loop of training. All run by turns in one process,
the median of the rounds is shown. Images per second of CPU time, all threads together, tell more where something else
runs.
"""

import argparse
import io
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

TRUNK, BATCH, EACH, SIZE = "tf_efficientnet_lite0", 32, 4, 128
STEPS = {64: 24, 128: 12, 224: 5}  # some seconds a turn; half as many come before and do not count
ROUNDS = 3
SCALE = (0.16, 1.0)
SETTINGS = {"alpha": 2.0, "beta": 50.0, "base": 0.5}  # of the loss


def clocks() -> tuple[float, float]:
    """Wall and CPU seconds."""
    return time.perf_counter(), time.process_time()


def since(begin: tuple[float, float]) -> tuple[float, float]:
    return time.perf_counter() - begin[0], time.process_time() - begin[1]


def timed_steps(batches: Iterator[tuple[Tensor, Tensor]], loss: Any, fast: bool, steps: int) -> tuple[float, float]:
    """Seconds of `steps` steps of a loop over batches; `fast` has channels_last and the fused optimizer."""
    torch.manual_seed(0)
    trunk = timm.create_model(TRUNK, pretrained=False, num_classes=0)
    network = nn.Sequential(trunk, nn.Linear(trunk.num_features, SIZE)).train()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    if fast:
        network.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=fast)
    warm = steps // 2
    for step in range(warm + steps):
        if step == warm:
            begin = clocks()
        images, labels = next(batches)
        if fast:
            images = images.contiguous(memory_format=torch.channels_last)
        loss(normalize(network(images)), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    return since(begin)


def bare(side: int, fast: bool, steps: int) -> tuple[float, float]:
    """The model and our loss, on one batch that lies in memory."""
    from levelfield.losses import MultiSimilarityLoss

    images = torch.rand(BATCH, 3, side, side)
    if fast:
        images = images.contiguous(memory_format=torch.channels_last)
    batch = images, torch.arange(BATCH) // EACH
    return timed_steps(iter(lambda: batch, None), MultiSimilarityLoss(**SETTINGS), fast, steps)


def minimal(folder: Path, side: int, fast: bool, steps: int) -> tuple[float, float]:
    """torchvision's ImageFolder and transforms, pytorch-metric-learning's sampler and loss, no loader process."""
    from pytorch_metric_learning.losses import MultiSimilarityLoss
    from pytorch_metric_learning.samplers import MPerClassSampler
    from torchvision import datasets, transforms

    steps_of_transform = [
        transforms.RandomResizedCrop(side, scale=SCALE),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize((0.5,) * 3, (0.5,) * 3),
    ]
    images = datasets.ImageFolder(str(folder), transforms.Compose(steps_of_transform))
    sampler = MPerClassSampler(images.targets, EACH, BATCH, length_before_new_iter=1000 * BATCH)
    batches = iter(torch.utils.data.DataLoader(images, BATCH, sampler=sampler))
    return timed_steps(batches, MultiSimilarityLoss(**SETTINGS), fast, steps)


def ours(side: int, steps: int) -> tuple[float, float]:
    """`levelfield fit`, from the prepared cache."""
    from lightning.pytorch import Callback

    from levelfield.training.build import Training

    warm = steps // 2

    class Steps(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == warm - 1:
                self.begin = clocks()
            elif batch_idx == warm + steps - 1:
                self.seconds = since(self.begin)

    config = {
        "data": {
            "dataset": {"class_path": "levelfield.data.datasets.GroceryStore"},
            "transforms": {"crop_size": side, "resize": side * 8 // 7},
            "batch_size": BATCH,
            "samples_per_class": EACH,
            "steps_per_epoch": warm + steps,
        },
        "model": {
            "trunk": {"class_path": "levelfield.models.TimmTrunk", "init_args": {"name": TRUNK, "weights": None}},
            "loss": {"class_path": "levelfield.losses.MultiSimilarityLoss", "init_args": SETTINGS},
        },
        "trainer": {"accelerator": "cpu", "max_epochs": 1, "limit_val_batches": 0},
    }
    with tempfile.TemporaryDirectory() as folder:
        training = Training(config, Path(folder)).build()
        counting = Steps()
        training.trainer.callbacks.append(counting)
        training.trainer.fit(training.model, datamodule=training.datamodule)
    return counting.seconds


def training_table(folder: Path, options: argparse.Namespace) -> None:
    print("\n| threads | px | loop | images/s | of the bare model | images / CPU s | of the bare model |")
    print("| --- | --- | --- | ---: | ---: | ---: | ---: |")
    for threads, side in itertools.product(options.threads, options.sides):
        torch.set_num_threads(threads)
        steps = STEPS[side]
        runs: dict[str, Callable[[], tuple[float, float]]] = {
            "bare model, channels-last, fused": partial(bare, side, True, steps),
            "bare model, plain": partial(bare, side, False, steps),
            "levelfield": partial(ours, side, steps),
            "minimal loop, channels-last, fused": partial(minimal, folder, side, True, steps),
            "minimal loop, plain": partial(minimal, folder, side, False, steps),
        }
        turns = [{name: run() for name, run in runs.items()} for _ in range(ROUNDS)]
        of_bare = list[float]()
        for name in runs:
            medians = [statistics.median(turn[name][clock] for turn in turns) for clock in (0, 1)]
            of_bare = of_bare or medians
            figures = [f"{steps * BATCH / own:.1f} | {of / own:.2f}" for own, of in zip(medians, of_bare, strict=True)]
            print(f"| {threads} | {side} | {name} | {' | '.join(figures)} |", flush=True)


def link_classes(folder: Path) -> None:
    """Grocery Store's training classes as torchvision's ImageFolder has them."""
    from levelfield.data import GroceryStore

    dataset = GroceryStore()
    index = dataset.read_index()
    for number, (key, label) in enumerate(zip(index.keys, index.labels.tolist(), strict=True)):
        if label < 40:
            (folder / f"{label:02}").mkdir(parents=True, exist_ok=True)
            (folder / f"{label:02}" / f"{number}{Path(key).suffix}").symlink_to(os.path.abspath(dataset.file_of(key)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", nargs="+", type=int, default=[2, 1])
    parser.add_argument("--sides", nargs="+", type=int, choices=STEPS, default=[*STEPS])
    options = parser.parse_args()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        os.environ["LEVELFIELD_CACHE"] = str(Path(place) / "cache")
        classes = Path(place) / "classes"
        link_classes(classes)
        with redirect_stderr(io.StringIO()):
            training_table(classes, options)
    print(f"\n{time.monotonic() - start:.0f} s, torch {torch.__version__}, {sys.platform}")


if __name__ == "__main__":
    main()
