"""Images a second of training beside the bare model and peers.

    python benchmarks/training.py                                   # the last line says how long it took
    python benchmarks/training.py --threads 1 --sides 64
    python benchmarks/training.py --oml ENVIRONMENT/bin/python      # open-metric-learning, which pins old versions

EfficientNet-Lite0 with random weights, batch norm in eval mode, a linear layer to 128 and the multi-similarity loss on
batches of 8 classes x 4 of Grocery Store (LEVELFIELD_DATA) in every loop of training. All run by turns in one process
(open-metric-learning in its own), the median of the rounds is shown. Images per second of CPU time, all threads
together, tell more where something else runs.
"""

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

TRUNK, BATCH, EACH, SIZE = "tf_efficientnet_lite0", 32, 4, 128
STEPS = {64: 24, 128: 12, 224: 5}  # some seconds a turn; half as many come before and do not count
SCALE = (0.16, 1.0)
Run = Callable[[], tuple[float, float]]


def model() -> nn.Sequential:
    torch.manual_seed(0)
    trunk = timm.create_model(TRUNK, pretrained=False, num_classes=0)
    return nn.Sequential(trunk, nn.Linear(trunk.num_features, SIZE)).train()


def freeze_batch_norm(network: nn.Module) -> None:
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()


class Clock:
    """Wall and CPU seconds since a moment."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        return time.perf_counter() - self.wall, time.process_time() - self.cpu


def timed_steps(batches: Iterator[tuple[Tensor, Tensor]], loss: Any, fast: bool, steps: int) -> tuple[float, float]:
    """Seconds of `steps` steps of a loop over batches; `fast` has channels_last and the fused optimizer."""
    network = model()
    freeze_batch_norm(network)
    if fast:
        network.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=fast)
    clock, warm = Clock(), steps // 2
    for step in range(warm + steps):
        if step == warm:
            clock = Clock()
        images, labels = next(batches)
        if fast:
            images = images.contiguous(memory_format=torch.channels_last)
        loss(normalize(network(images)), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    return clock.read()


def bare(side: int, fast: bool, steps: int) -> tuple[float, float]:
    """The model and our loss, on one batch that lies in memory."""
    from levelfield.losses import MultiSimilarityLoss

    images = torch.rand(BATCH, 3, side, side)
    if fast:
        images = images.contiguous(memory_format=torch.channels_last)
    batch = images, torch.arange(BATCH) // EACH
    return timed_steps(iter(lambda: batch, None), MultiSimilarityLoss(alpha=2.0, beta=50.0, base=0.5), fast, steps)


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
    return timed_steps(batches, MultiSimilarityLoss(alpha=2, beta=50, base=0.5), fast, steps)


def open_metric_learning(folder: Path, side: int, steps: int) -> tuple[float, float]:
    """Its data set, sampler, loss and loop, as its documentation's example has them; runs in its own environment."""
    import pandas as pd
    from oml.datasets import ImageLabeledDataset
    from oml.losses.triplet import TripletLossWithMiner
    from oml.miners.inbatch_all_tri import AllTripletsMiner
    from oml.samplers.balance import BalanceSampler
    from torchvision import transforms

    files = sorted(folder.glob("*/*"))
    names = {name: number for number, name in enumerate(sorted({file.parent.name for file in files}))}
    table = pd.DataFrame({"path": map(str, files), "label": [names[file.parent.name] for file in files]})
    table["split"] = "train"
    steps_of_transform = [
        transforms.RandomResizedCrop(side, scale=SCALE),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize((0.5,) * 3, (0.5,) * 3),
    ]
    images = ImageLabeledDataset(table, transform=transforms.Compose(steps_of_transform))

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            sampler = BalanceSampler(images.get_labels(), n_labels=BATCH // EACH, n_instances=EACH)
            for batch in torch.utils.data.DataLoader(images, batch_sampler=sampler):
                yield batch["input_tensors"], batch["labels"]

    return timed_steps(batches(), TripletLossWithMiner(margin=0.1, miner=AllTripletsMiner()), False, steps)


def in_another_python(python: str, folder: Path, side: int, steps: int, threads: int) -> tuple[float, float]:
    words = [python, __file__, "--oml-loop", str(folder), str(side), str(steps), str(threads)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(words, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    wall, cpu = json.loads(done.stdout.splitlines()[-1])
    return wall, cpu


def configuration(side: int, steps: int, **data: Any) -> dict[str, Any]:
    """What `levelfield fit --config` would take; all else is the default."""
    return {
        "data": {
            "dataset": {"class_path": "levelfield.data.datasets.GroceryStore"},
            "transforms": {"crop_size": side, "resize": side * 8 // 7},
            "batch_size": BATCH,
            "samples_per_class": EACH,
            "steps_per_epoch": steps,
            **data,
        },
        "model": {
            "trunk": {"class_path": "levelfield.models.TimmTrunk", "init_args": {"name": TRUNK, "weights": None}},
            "loss": {
                "class_path": "levelfield.losses.MultiSimilarityLoss",
                "init_args": {"alpha": 2.0, "beta": 50.0, "base": 0.5},
            },
        },
        "trainer": {"accelerator": "cpu", "max_epochs": 1},
    }


def ours(side: int, steps: int) -> tuple[float, float]:
    """`levelfield fit`, from the prepared cache."""
    from lightning.pytorch import Callback

    from levelfield.training.build import Training

    warm = steps // 2

    class Steps(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == warm - 1:
                self.clock = Clock()
            elif batch_idx == warm + steps - 1:
                self.seconds = self.clock.read()

    config = configuration(side, warm + steps)
    config["trainer"]["limit_val_batches"] = 0
    with tempfile.TemporaryDirectory() as folder:
        training = Training(config, Path(folder)).build()
        counting = Steps()
        training.trainer.callbacks.append(counting)
        training.trainer.fit(training.model, datamodule=training.datamodule)
    return counting.seconds


def by_turns(runs: dict[str, Run], rounds: int) -> dict[str, tuple[float, float]]:
    """The median of what each run measures, one run of each after the other."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            found[name].append(run())
    return {name: tuple(map(statistics.median, zip(*times, strict=True))) for name, times in found.items()}  # type: ignore[misc]


def training_table(folder: Path, options: argparse.Namespace) -> None:
    print("\n| threads | px | loop | images/s | of the bare model | images / CPU s | of the bare model |")
    print("| --- | --- | --- | ---: | ---: | ---: | ---: |")
    for threads in options.threads:
        torch.set_num_threads(threads)
        for side in options.sides:
            steps = options.steps or STEPS.get(side, 6)
            runs: dict[str, Run] = {
                "bare model, channels-last, fused": lambda s=side, n=steps: bare(s, True, n),
                "bare model, plain": lambda s=side, n=steps: bare(s, False, n),
                "levelfield": lambda s=side, n=steps: ours(s, n),
                "minimal loop, channels-last, fused": lambda s=side, n=steps: minimal(folder, s, True, n),
                "minimal loop, plain": lambda s=side, n=steps: minimal(folder, s, False, n),
            }
            if options.oml:
                runs["open-metric-learning"] = lambda s=side, n=steps, t=threads: in_another_python(
                    options.oml, folder, s, n, t
                )
            found = by_turns(runs, options.rounds)
            first = found["bare model, channels-last, fused"]
            for name, seconds in found.items():
                figures = [
                    (f"{steps * BATCH / own:.1f}", f"{of / own:.2f}") for own, of in zip(seconds, first, strict=True)
                ]
                print(
                    f"| {threads} | {side} | {name} | {' | '.join(x for pair in figures for x in pair)} |", flush=True
                )


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
    parser.add_argument("--sides", nargs="+", type=int, default=[64, 128, 224])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="of a turn of training, after half as many; by default some seconds")
    parser.add_argument("--oml", help="the python of an environment with open-metric-learning and timm")
    parser.add_argument("--oml-loop", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.oml_loop:
        side, steps, threads = map(int, options.oml_loop[1:])
        torch.set_num_threads(threads)
        print(json.dumps(open_metric_learning(Path(options.oml_loop[0]), side, steps)))
        return
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
