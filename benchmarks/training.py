"""Images a second of training and embedding beside the bare model and peers, and of the input alone.

    python benchmarks/training.py                                   # everything; the last line says how long it took
    python benchmarks/training.py --only training --threads 1
    python benchmarks/training.py --only input --pictures 200 --rounds 1
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import normalize

TRUNK, BATCH, EACH, SIZE = "tf_efficientnet_lite0", 32, 4, 128
STEPS = {64: 24, 128: 12, 224: 5}  # some seconds a turn; half as many come before and do not count
SCALE = (0.16, 1.0)
LARGE = 320  # pictures of 1,500 px that are read from their files in one turn
SECTIONS = ("training", "epoch", "embedding", "input")
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


def epoch_table(options: argparse.Namespace) -> None:
    """What an epoch of 40 steps with its validation spends its time on, by Lightning's profiler."""
    from levelfield.training.build import Training

    torch.set_num_threads(options.threads[0])
    config = configuration(112, 40)
    config["trainer"]["profiler"] = "simple"
    with tempfile.TemporaryDirectory() as folder:
        training = Training(config, Path(folder)).build()
        training.datamodule.setup("fit")  # the cache is made once, whatever trains
        start = time.perf_counter()
        training.trainer.fit(training.model, datamodule=training.datamodule)
        whole = time.perf_counter() - start
    spent = {name: sum(times) for name, times in training.trainer.profiler.recorded_durations.items()}
    print(
        f"\nAn epoch of 40 steps of {BATCH} at 112 px and its validation: {whole:.1f} s, {options.threads[0]} threads."
    )
    print("\n| what | s | share |\n| --- | ---: | ---: |")
    for name, seconds in sorted(spent.items(), key=lambda each: -each[1])[:16]:
        print(f"| {name.replace('|', '/')} | {seconds:.2f} | {seconds / whole:.1%} |")


@contextmanager
def grocery(cache: bool, **transforms: Any) -> Iterator[Any]:
    from levelfield.data import GroceryStore, ImageTransforms
    from levelfield.data.datamodule import MetricDataModule

    data = MetricDataModule(GroceryStore(), transforms=ImageTransforms(112, 128, **transforms), cache=cache)
    yield data


def embedding_table(options: argparse.Namespace) -> None:
    from levelfield.models import TimmTrunk
    from levelfield.training.embed import embed

    trunk = TimmTrunk(TRUNK, weights=None).eval()
    print("\n| threads | embedding Grocery Store at 112 px | images/s | of the bare model | images / CPU s | of it |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for threads in options.threads:
        torch.set_num_threads(threads)
        loaders = {}
        for name, cache in (("files", False), ("cache", True)):
            with grocery(cache) as data:
                data.setup("fit")
                loaders[name] = data.eval_dataloader(data.val_subset)
        count = len(loaders["files"].dataset)

        def whole(of: Any, count: int = count, size: int = 64) -> tuple[float, float]:
            clock = Clock()
            if of is None:
                images = torch.rand(size, 3, 112, 112)
                with torch.inference_mode():
                    for first in range(0, count, size):
                        trunk(images[: min(size, count - first)])
            else:
                embed(trunk, of)
            return clock.read()

        subset = loaders["files"].dataset
        files = [subset.dataset.file_of(key) for key in subset.index.keys]

        def pillow(files: Sequence[Path] = files) -> tuple[float, float]:
            clock = Clock()
            for file in files:
                with Image.open(file, formats=["JPEG", "PNG"]) as image:
                    scale = 128 / min(image.size)
                    image.resize([int(each * scale) for each in image.size], Image.Resampling.BILINEAR)
            return clock.read()

        runs: dict[str, Run] = {"bare model, a tensor in memory": lambda: whole(None)}
        runs |= {f"bare model, batches of {size}": lambda size=size: whole(None, size=size) for size in (16, 256)}
        runs |= {f"levelfield, {name}": lambda of=of: whole(of) for name, of in loaders.items()}
        runs |= {"Pillow's decoding and resizing alone, no model": pillow}
        whole(None)
        found = by_turns(runs, options.rounds)
        first = next(iter(found.values()))
        for name, seconds in found.items():
            figures = [(f"{count / own:.1f}", f"{of / own:.2f}") for own, of in zip(seconds, first, strict=True)]
            print(f"| {threads} | {name} | {' | '.join(x for pair in figures for x in pair)} |", flush=True)


def write_pictures(folder: Path, count: int, side: int, sources: Sequence[Path]) -> None:
    """Mosaics of photographs, 40 classes, as JPEG of quality 90."""
    rng = np.random.default_rng(0)
    tiles = [np.asarray(Image.open(file).convert("RGB").resize((150, 150))) for file in sources[::7]]
    across = side // 150
    for number in range(count):
        chosen = rng.integers(len(tiles), size=(across, across))
        mosaic = np.concatenate([np.concatenate([tiles[t] for t in row], axis=1) for row in chosen])
        place = folder / f"{number % 40:02}"
        place.mkdir(exist_ok=True)
        Image.fromarray(mosaic).save(place / f"{number}.jpg", quality=90)


class Former:
    """How samples came until batches were cut at once: a v2 pipeline for each, floats stacked by default_collate."""

    def __init__(self, subset: Any, transforms: Any, train: bool) -> None:
        from torchvision.transforms import v2

        side, resize = transforms.crop_size, transforms.resize
        cut = [v2.RandomResizedCrop(side, scale=SCALE), v2.RandomHorizontalFlip()] if train else [v2.CenterCrop(side)]
        self.transform = v2.Compose([v2.Resize(resize), *cut, v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
        self.subset = subset

    def __len__(self) -> int:
        return len(self.subset)

    def __getitem__(self, position: int) -> tuple[Tensor, int]:
        image = self.subset.dataset.load(self.subset.index.keys[position])
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(position)
            return self.transform(image), int(self.subset.labels[position])


def input_table(folder: Path, options: argparse.Namespace) -> None:
    """Pictures a second of CPU time, without a model, of one process with one thread."""
    from levelfield.data import GroceryStore, ImageFolder, ImageTransforms
    from levelfield.data.datamodule import MetricDataModule

    torch.set_num_threads(1)
    pictures = folder / "pictures"
    pictures.mkdir()
    files = sorted(file for file in (folder / "classes").glob("*/*"))
    write_pictures(pictures, options.pictures, 1500, files)
    print(
        f"\n{options.pictures:,} pictures of 1,500 px: "
        f"{sum(file.stat().st_size for file in pictures.glob('*/*')) / 1e6:.0f} MB"
    )
    print("\n| px | brought to | input | training, pictures / CPU s | evaluation, pictures / CPU s |")
    print("| --- | --- | --- | ---: | ---: |")
    for px, dataset, crop, resize in ((160, GroceryStore(), 112, 128), (1500, ImageFolder(pictures), 224, 256)):
        rows: dict[str, dict[str, Run]] = {}
        sizes: dict[str, int] = {}

        def spent(batches: Any, most: int) -> tuple[float, float]:
            clock, seen = Clock(), 0
            for batch in batches:
                seen += len(batch[1])
                if seen >= most:
                    break
            wall, cpu = clock.read()
            return wall / seen, cpu / seen

        for name, cache in (("files", False), ("cache", True)):
            transforms = ImageTransforms(crop, resize)
            data = MetricDataModule(dataset, transforms=transforms, cache=cache, steps_per_epoch=10**6, num_workers=0)
            most = min(options.pictures, LARGE if px > 1000 and not cache else 2000)
            clock = Clock()
            data.setup("fit")
            if cache:
                sizes[name] = round((len(data.train_subset) + len(data.val_subset)) / clock.read()[0])
            train, evaluation = data.train_dataloader(), data.train_samples()
            rows[name] = {
                "train": lambda of=train, n=most: spent(of, n),
                "evaluate": lambda of=evaluation, n=most: spent(of, n),
            }
            if name == "files":
                former = [
                    torch.utils.data.DataLoader(Former(data.train_subset, transforms, t), BATCH) for t in (True, False)
                ]
                rows = {
                    "as before, files": {
                        "train": lambda of=former[0], n=most: spent(of, n),
                        "evaluate": lambda of=former[1], n=most: spent(of, n),
                    },
                    **rows,
                }
        runs = {f"{name}/{part}": run for name, parts in rows.items() for part, run in parts.items()}
        found = by_turns(runs, options.rounds)
        for name in rows:
            figures = [f"{1 / found[f'{name}/{part}'][1]:,.0f}" for part in ("train", "evaluate")]
            print(f"| {px} | {crop} of {resize} | {name} | {' | '.join(figures)} |", flush=True)
        made = ", ".join(f"{name} {rate:,} pictures/s" for name, rate in sizes.items())
        print(f"\nMaking the cache of {px} px with {len(os.sched_getaffinity(0))} cores: {made}.\n")


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
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--threads", nargs="+", type=int, default=[2, 1])
    parser.add_argument("--sides", nargs="+", type=int, default=[64, 128, 224])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="of a turn of training, after half as many; by default some seconds")
    parser.add_argument("--pictures", type=int, default=2000, help="of 1,500 px, made on the fly")
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
        for section in options.only:
            with redirect_stderr(io.StringIO()):
                if section == "training":
                    training_table(classes, options)
                elif section == "epoch":
                    epoch_table(options)
                elif section == "embedding":
                    embedding_table(options)
                else:
                    input_table(Path(place), options)
    print(f"\n{time.monotonic() - start:.0f} s, torch {torch.__version__}, {sys.platform}")


if __name__ == "__main__":
    main()
