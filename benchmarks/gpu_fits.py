"""Parts of `gpu.py` that fit or validate a learner: waits, validation, training steps, and the input."""

import os
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gpu_clock import Clock, Part, Table, by_turns, per_second
from torch import Tensor, nn
from torch.nn.functional import interpolate, normalize

EMBEDDING_SIZE = 128
Batch = tuple[Tensor, Tensor]


class OnDevice(list[Any]):
    """A loader of batches that are already on the device; a plain list would be several loaders."""


def network(name: str) -> nn.Module:
    from levelfield.models import TimmTrunk

    torch.manual_seed(0)
    return TimmTrunk(name, weights=None)


def learner_of(trunk: nn.Module) -> Any:
    from levelfield.losses import NTXentLoss
    from levelfield.training.learner import MetricLearner

    return MetricLearner(trunk, NTXentLoss(), embedding_size=EMBEDDING_SIZE)


def trainer_of(part: Part, **settings: Any) -> Any:
    """A Trainer with the settings of `levelfield fit`, in bfloat16, that writes nothing."""
    from lightning.pytorch import Trainer

    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_model_summary", "enable_progress_bar"), False)
    usual = {"precision": "bf16-mixed", "deterministic": "warn", "log_every_n_steps": 10, "num_sanity_val_steps": 0}
    where = {"accelerator": "cpu" if part.small else "gpu", "devices": 1, "use_distributed_sampler": False}
    trainer = Trainer(**(quiet | usual | where | settings))
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    return trainer


def until(clock: Clock) -> Any:
    """The callback that ends a fit when the clock says so."""
    from lightning.pytorch.callbacks import LambdaCallback

    def end(trainer: Any, *_: Any, **__: Any) -> None:
        trainer.should_stop = clock.tick()

    return LambdaCallback(on_train_batch_end=end)


def class_images(part: Part, classes: int, each: int, side: int) -> tuple[Tensor, Tensor]:
    """Images on the device: a coloured cloud for each class, with noise."""
    draw = torch.Generator(part.device).manual_seed(0)
    clouds = torch.rand(classes, 3, 8, 8, generator=draw, device=part.device)
    labels = torch.arange(classes, device=part.device).repeat_interleave(each)
    images = interpolate(clouds, size=(side, side), mode="bilinear")[labels]
    images += 0.3 * torch.randn(images.shape, generator=draw, device=part.device)
    return images.clamp_(0, 1).contiguous(memory_format=torch.channels_last), labels


# Waits for the GPU.


def waits(part: Part) -> None:
    """Lines that make the host wait for the GPU, in an epoch with validation of a datamodule's batches."""
    from lightning.pytorch.callbacks import LambdaCallback

    from levelfield.data.datamodule import MetricDataModule
    from levelfield.data.datasets import Glyphs
    from levelfield.data.transforms import ImageTransforms

    classes, steps = (32, 4) if part.small else (160, 50)
    data = MetricDataModule(
        Glyphs(classes, image_size=64), num_workers=0 if part.small else 4, steps_per_epoch=steps,
        transforms=ImageTransforms(crop_size=64, resize=64, horizontal_flip=False),
    )  # fmt: skip
    begun, counts = list[bool](), Counter[tuple[str, str, str]]()
    begins, ends = (lambda *_: begun.append(True)), (lambda *_: begun.clear())
    trainer = trainer_of(part, max_epochs=1, callbacks=[LambdaCallback(on_train_start=begins, on_train_end=ends)])

    def note(message: Any, *_: Any, **__: Any) -> None:
        if "called a synchronizing" in str(message):  # before and after the epoch, Lightning moves all weights
            stage = trainer.state.stage.value if begun else "start and end"
            counts[stage, *place(traceback.extract_stack()[:-1])] += 1

    learner = learner_of(network("test_resnet"))
    if part.small:  # nothing waits for a CPU: the trunk says that it does
        learner.trunk.register_forward_hook(lambda *_: warnings.warn("called a synchronizing operation", stacklevel=1))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        if not part.small:
            torch.cuda.set_sync_debug_mode("warn")
        trainer.fit(learner, datamodule=data)
        if not part.small:
            torch.cuda.set_sync_debug_mode("default")
    batches = {"train": steps, "validate": len(data.val_dataloader()), "start and end": 1}
    title = f"Waits for the GPU in an epoch of {steps} batches, validated on {batches['validate']} batches"
    table = Table(part.file, title, "stage", "line", "source", "waits", "a batch")
    for stage, number in batches.items():
        count = sum(count for (of, *_), count in counts.items() if of == stage)
        table.row(stage, "all", "", count, count / number)
    for (stage, line, source), count in counts.most_common():
        table.row(stage, line, f"`{source}`", count, count / batches[stage])


def place(stack: Sequence[traceback.FrameSummary]) -> tuple[str, str]:
    """File and line, and source, of the innermost call from levelfield, else from Lightning, else of all."""
    import levelfield

    frames = [frame for frame in stack if frame.filename != __file__]
    own = [frame for frame in frames if frame.filename.startswith(str(Path(levelfield.__file__).parent))]
    other = [frame for frame in frames if "/lightning/" in frame.filename]
    frame = (own or other or frames)[-1]
    return f"{'/'.join(Path(frame.filename).parts[-3:])}:{frame.lineno}", (frame.line or "").replace("|", "/")[:70]


# Validation.


def validation(part: Part) -> None:
    """Validation of images on the device, as levelfield does it and under autocast, with the same weights."""
    from lightning.pytorch import Callback

    class Timed(Callback):
        def __init__(self, autocast: bool) -> None:
            self.autocast, self.begin, self.milliseconds = autocast, 0.0, float("nan")

        def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
            if self.autocast:  # removes the context of `RetrievalValidation`, which computes in float32
                vars(trainer.precision_plugin).pop("val_step_context", None)
            part.wait()
            self.begin = time.perf_counter()

        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            part.wait()
            self.milliseconds = 1e3 * (time.perf_counter() - self.begin)

    trunks, sizes = ("resnet50", "vit_small_patch16_224"), (64, 256)
    classes, each, side = 64, 16, 224
    if part.small:
        trunks, sizes, classes, each, side = ("test_resnet", "test_vit"), (8,), 8, 4, 160
    images, labels = class_images(part, classes, each, side)
    title = f"Validation of {len(labels):,} images of {side} px on the device, in a fit with bf16-mixed"
    table = Table(part.file, title, "trunk", "batch", "computes", "images/s", "MAP@R, %")
    kinds = {"as levelfield: in float32": False, "under autocast": True}
    scores: dict[str, float] = {}

    def run(name: str, learner: Any, batches: list[Batch]) -> float:
        timed = Timed(kinds[name])
        trainer = trainer_of(part, callbacks=[timed])
        trainer.validate(learner, OnDevice(batches), verbose=False)
        scores[name] = 100 * float(trainer.callback_metrics["val/map_at_r"])
        return timed.milliseconds

    for trunk in trunks:
        learner = learner_of(network(trunk))
        for size in sizes:
            batches = [*zip(images.split(size), labels.split(size), strict=True)]
            found = by_turns(part, {name: partial(run, name, learner, batches) for name in kinds}, rounds=3)
            for name, milli in found.items():
                table.row(trunk, size, name, per_second(len(labels), milli), scores.get(name, ""))


# Training steps: a trunk and a linear embedder learn by NT-Xent from one batch on the device, batch norm frozen.


def bare(part: Part, trunk: Any, batch: Batch, clock: Clock, tuned: bool = False, compiled: bool = False) -> None:
    """A plain loop; `tuned` has cuDNN's fastest convolutions and fused AdamW. Images and weights are channels-last."""
    from levelfield.losses import NTXentLoss

    (images, labels), loss = batch, NTXentLoss()
    model = nn.Sequential(trunk, nn.Linear(trunk.num_features, EMBEDDING_SIZE)).to(part.device).train()
    for each in model.modules():
        if isinstance(each, nn.modules.batchnorm._BatchNorm):
            each.eval()
    if compiled:
        trunk.compile(backend=backend(part))
    torch.backends.cudnn.benchmark = tuned
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=tuned or None)
    while not clock.tick():
        with torch.autocast(part.device.type, torch.bfloat16):
            embeddings = model(images)
        loss(normalize(embeddings.float()), labels).backward()
        adamw.step()
        adamw.zero_grad()


def fit(part: Part, trunk: Any, batch: Batch, clock: Clock, compiled: bool = False, **settings: Any) -> None:
    """`MetricLearner` in the Trainer of `levelfield fit`."""
    torch.backends.cudnn.benchmark = False
    trainer = trainer_of(part, max_epochs=-1, limit_val_batches=0, callbacks=[until(clock)], **settings)
    learner = learner_of(trunk)
    if compiled:
        learner.trunk.compile(backend=backend(part))
    trainer.fit(learner, OnDevice([batch] * 10**6))


def backend(part: Part) -> str:
    return "eager" if part.small else "inductor"


TUNED = "bare loop, cuDNN benchmark, fused AdamW"
LOOPS: dict[str, Callable[..., None]] = {
    "bare loop": bare,
    TUNED: partial(bare, tuned=True),
    "`levelfield fit`": fit,
}
COMPILED: dict[str, Callable[..., None]] = {
    f"{TUNED}, compiled": partial(bare, tuned=True, compiled=True),
    "fit, compiled, not deterministic": partial(fit, compiled=True, deterministic=False),
    "fit, compiled": partial(fit, compiled=True),
}


def training(part: Part) -> None:
    """Steps of bare loops and fits, first as they are, then compiled."""
    cases, side = [("resnet50", 128), ("resnet50", 32), ("tf_efficientnet_lite0", 32)], 224
    if part.small:
        cases, side = [("test_resnet", 8)], 32
    columns = ("trunk", "batch", "loop", "ms a step", "images/s", "of the tuned loop", "peak MiB")
    tuned: dict[tuple[str, int], Any] = {}

    def rows(table: Table, trunk: str, size: int, loops: Mapping[str, Callable[..., None]], rounds: int) -> None:
        mib: dict[str, str] = {}
        batch = class_images(part, size // 4, 4, side)

        def run(name: str) -> float:
            clock = Clock(part, 0.7)
            part.free()
            torch.compiler.reset()
            torch.use_deterministic_algorithms(False)
            with part.peak(mib, name):
                loops[name](part, network(trunk), batch, clock)
            return clock.step_milliseconds

        found = by_turns(part, {name: partial(run, name) for name in loops}, rounds)
        least = tuned.setdefault((trunk, size), found.get(TUNED))
        for name, milli in found.items():
            of_tuned = least / milli if isinstance(least, float) and isinstance(milli, float) else ""
            table.row(trunk, size, name, milli, per_second(size, milli), of_tuned, mib.get(name, ""))

    table = Table(part.file, f"Training steps, {side} px, bfloat16", *columns)
    for trunk, size in cases:
        if part.has(8):
            rows(table, trunk, size, LOOPS, rounds=2)
        else:
            table.row(trunk, size, "all", "no time left")
    cases = cases[2:] + cases[:2]  # the small network gains most
    ahead = "" if part.small else compile_ahead(part, cases)
    table = Table(part.file, f"Compiled training steps, {side} px, bfloat16{ahead}", *columns)
    for trunk, size in cases:
        for name, loop in COMPILED.items():
            if part.has(12):
                rows(table, trunk, size, {name: loop}, rounds=1)
            else:
                table.row(trunk, size, name, "no time left")


def compile_ahead(part: Part, cases: Sequence[tuple[str, int]]) -> str:
    """Fill Inductor's cache on disk, one process for each fit: a compilation uses one core most of the time."""
    command = [sys.executable, str(Path(__file__).with_name("gpu.py")), "--part", "training", "--ahead"]
    environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "3"}
    fits = [name for name in COMPILED if name.startswith("fit")]
    part.free()
    begin = time.perf_counter()
    words = [[trunk, str(size), name] for trunk, size in cases for name in fits]
    processes = [subprocess.Popen([*command, *each], env=environment) for each in words]
    while any(process.poll() is None for process in processes) and part.has(40):
        time.sleep(0.2)
    done = [process.poll() for process in processes].count(0)
    for process in processes:
        process.kill()
    return f"; {done} of {len(processes)} fits compiled ahead in {time.perf_counter() - begin:.0f} s"


def compile_one(part: Part, trunk: str, size: str, name: str) -> None:
    """What a process of `compile_ahead` does."""
    batch = class_images(part, int(size) // 4, 4, 224)
    COMPILED[name](part, network(trunk), batch, Clock(part, 0.0, warm_up=1))


# The input.


def made_images(folder: Path, classes: int, each: int, width: int, height: int, different: int = 16) -> None:
    """JPEG files of coloured clouds, a folder for each class. Files beyond the `different` ones are links to these."""
    import numpy as np
    from PIL import Image

    def make(number: int) -> Path:
        draw = np.random.default_rng(number)
        small = draw.integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8)
        file = folder.with_name(f"{folder.name}-{number}.jpg")
        Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC).save(file)
        return file

    with ThreadPoolExecutor(8) as pool:  # Pillow works without Python's global lock
        files = [*pool.map(make, range(different))]
    for number in range(classes * each):
        place = folder / f"class{number // each:03d}"
        place.mkdir(parents=True, exist_ok=True)
        os.link(files[number % different], place / f"{number % each}.jpg")


def input_path(part: Part) -> None:
    """Batches of loader processes from a cache and from files, and a fit from each."""
    from levelfield.data.datamodule import MetricDataModule
    from levelfield.data.datasets import ImageFolder
    from levelfield.data.transforms import ImageTransforms

    # Source, width, height, batch. A process opens a whole batch, so batches of large images are small.
    sources = [("cache", 500, 375, 128), ("files", 500, 375, 128), ("files", 1600, 1200, 32), ("files", 4000, 3000, 8)]
    trunk, crops = "resnet50", ImageTransforms(crop_size=224, resize=256)
    numbers = [*dict.fromkeys(min(each, part.cores) for each in (16, 8, 4))]
    if part.small:
        sources, numbers, trunk = [("cache", 64, 48, 8), ("files", 96, 72, 8)], [2, 1], "test_resnet"
        crops = ImageTransforms(crop_size=32, resize=40)
    columns = ("from", "image", "batch", "loader processes", "loader alone, images/s", f"fit of {trunk}, images/s")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LEVELFIELD_CACHE"] = str(Path(folder, "cache"))
        begin = time.perf_counter()
        for width, height in {source[1:3] for source in sources}:
            made_images(Path(folder, f"{width}"), 100, 8, width, height)
        made = time.perf_counter() - begin
        title = f"Training batches of {crops.crop_size} px; the images were made in {made:.1f} s"
        table = Table(part.file, title, *columns)

        def data(workers: int, source: str, width: int, height: int, size: int) -> MetricDataModule:
            samples = MetricDataModule(
                ImageFolder(Path(folder, f"{width}")), batch_size=size, samples_per_class=4, steps_per_epoch=10**5,
                num_workers=workers, cache=source == "cache", transforms=crops,
            )  # fmt: skip
            samples.device = part.device
            return samples

        def alone(workers: int, *source: Any) -> float:
            samples, clock = data(workers, *source), Clock(part, 1.5, warm_up=2 * workers, every=workers)
            samples.setup("fit")
            for _ in samples.train_dataloader():
                if clock.tick():
                    break
            return clock.step_milliseconds

        def fitted(workers: int, *source: Any) -> float:
            clock = Clock(part, 2.0, warm_up=2 * workers + 8, every=workers)
            trainer = trainer_of(part, max_epochs=1, limit_val_batches=0, callbacks=[until(clock)])
            trainer.fit(learner_of(network(trunk)), datamodule=data(workers, *source))
            return clock.step_milliseconds

        for workers in numbers:
            for source in sources:
                runs = {"alone": partial(alone, workers, *source)}
                if workers == numbers[0]:
                    runs["fit"] = partial(fitted, workers, *source)
                found = by_turns(part, runs, rounds=1) if part.has(10) else dict.fromkeys(runs, "no time left")
                kind, width, height, size = source
                speeds = (per_second(size, milli) for milli in found.values())
                table.row(kind, f"{width} x {height}", size, workers, *speeds)
