"""What a GPU does: training steps, losses, retrieval and the input path, beside the bare loop and other libraries.

    python benchmarks/gpu.py                            # under 9 minutes on one GPU; no network, random weights
    python benchmarks/gpu.py --parts training losses    # some of it
    python benchmarks/gpu.py --device cpu               # the same in miniature, in a minute or two: does it work?

Each part runs in a process of its own with its share of `--minutes` and writes its Markdown table as it goes: a part
that fails, or runs out of memory or of time, says so, keeps the rows that it has, and the next one begins. The whole is
printed and written to `--output`. With pytorch-metric-learning missing its rows say so.
"""

import argparse
import gc
import os
import platform
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

SHARES = {"training": 205, "losses": 100, "retrieval": 120, "input": 70}
EMBEDDING_SIZE = 128


class Table:
    """A Markdown table in a file, whole after each row."""

    def __init__(self, file: Path, title: str, *columns: str) -> None:
        self.file = file
        self._write(f"\n### {title}\n\n| {' | '.join(columns)} |\n|{' --- |' * len(columns)}\n")

    def row(self, *cells: Any) -> None:
        self._write(f"| {' | '.join(map(str, cells))} |\n")

    def _write(self, text: str) -> None:
        with self.file.open("a") as file:
            file.write(text)


class Part:
    """What a part is given.

    Attributes:
        small: whether it is the miniature.
    """

    def __init__(self, device: str, seconds: float, file: Path, cores: int) -> None:
        self.device, self.file, self.cores = torch.device(device), file, cores
        self.small = device == "cpu"
        self.end = time.perf_counter() + seconds

    @property
    def left(self) -> float:
        """Seconds."""
        return self.end - time.perf_counter()

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    @contextmanager
    def peak(self, found: dict[str, str]) -> Iterator[None]:
        """The most memory that tensors took beside what they had before, in MiB, as `found["MiB"]`."""
        if self.device.type != "cuda":
            found["MiB"] = "-"
            yield
            return
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        yield
        found["MiB"] = f"{(torch.cuda.max_memory_allocated() - before) / 2**20:,.0f}"


class Clock:
    """Times steps: `tick` after each; the first are not counted, and the last says that it is enough."""

    def __init__(self, part: Part, seconds: float, warm_up: int = 5) -> None:
        self.part, self.seconds, self.warm_up = part, seconds, 1 if part.small else warm_up
        self.steps, self.begin, self.step_seconds = 0, 0.0, float("nan")

    def tick(self) -> bool:
        self.steps += 1
        if self.steps == self.warm_up:
            self.part.wait()
            self.begin = time.perf_counter()
        done = self.steps > self.warm_up and time.perf_counter() - self.begin > self.seconds
        if done:
            self.part.wait()
            self.step_seconds = (time.perf_counter() - self.begin) / (self.steps - self.warm_up)
        return done


def in_a_line(error: BaseException) -> str:
    first = (str(error).strip().splitlines() or [""])[0].replace("|", "/")
    return f"failed: {type(error).__name__} {first[:120]}"


# Training: each of these trains a trunk and an embedder by NT-Xent on one batch that lies on the device, batch norm
# frozen, in bfloat16 where autocast takes it, until the clock says that it is enough.


def network(trunk: str) -> nn.Module:
    from levelfield.models import BNInceptionTrunk, TimmTrunk

    torch.manual_seed(0)
    return BNInceptionTrunk(weights=None) if trunk == "bn_inception" else TimmTrunk(trunk, weights=None)


def eval_batch_norm(module: nn.Module) -> None:
    for each in module.modules():
        if isinstance(each, nn.modules.batchnorm._BatchNorm):
            each.eval()


class Embedder(nn.Module):
    """Trunk and linear layer, in bfloat16."""

    def __init__(self, trunk: Any, device: torch.device) -> None:
        super().__init__()
        self.layers = nn.Sequential(trunk, nn.Linear(trunk.num_features, EMBEDDING_SIZE)).to(device)
        self.kind = device.type

    def forward(self, images: Tensor) -> Tensor:
        with torch.autocast(self.kind, torch.bfloat16):
            embeddings = self.layers(images)
        return normalize(embeddings.float())


def bare(trunk: Any, batch: tuple[Tensor, Tensor], clock: Clock, **optimizer: Any) -> None:
    from levelfield.losses import NTXentLoss

    images, labels = batch
    model, loss = Embedder(trunk, images.device), NTXentLoss()
    eval_batch_norm(model.train())
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-4, **optimizer)
    while not clock.tick():
        loss(model(images), labels).backward()
        adamw.step()
        adamw.zero_grad()


def bare_tuned(trunk: Any, batch: tuple[Tensor, Tensor], clock: Clock) -> None:
    """With the fused optimizer, and the convolutions that cuDNN found fastest."""
    with cudnn_benchmark():
        bare(trunk, batch, clock, fused=True)


def ours(
    trunk: Any, batch: tuple[Tensor, Tensor], clock: Clock, learner: Any = None, fill: bool = False, **trainer: Any
) -> None:
    """`MetricLearner` in Lightning's Trainer, set as `levelfield fit` sets it."""
    from lightning.pytorch import Callback, LightningModule, Trainer

    from levelfield.losses import NTXentLoss
    from levelfield.training.learner import MetricLearner

    class Enough(Callback):
        def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any) -> None:
            trainer.should_stop = clock.tick()

    class Same:
        def __len__(self) -> int:
            return 10**6

        def __iter__(self) -> Iterator[dict[str, Tensor]]:
            for _ in range(len(self)):
                yield {"samples": batch[0], "labels": batch[1]}

    on_gpu = batch[0].is_cuda
    torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]
    settings = {"precision": "bf16-mixed", "deterministic": "warn", "log_every_n_steps": 10, **trainer}
    callbacks = [Enough(), *settings.pop("callbacks", [])]
    Trainer(
        accelerator="gpu" if on_gpu else "cpu", devices=1, max_epochs=-1, limit_val_batches=0, num_sanity_val_steps=0,
        logger=False, enable_checkpointing=False, enable_model_summary=False, callbacks=callbacks,
        **{"enable_progress_bar": False, **settings},
    ).fit(MetricLearner(trunk, NTXentLoss(), embedding_size=EMBEDDING_SIZE, **(learner or {})), Same())  # fmt: skip
    torch.use_deterministic_algorithms(False)


def ours_filled(trunk: Any, batch: tuple[Tensor, Tensor], clock: Clock) -> None:
    """With torch's default for deterministic operations."""
    ours(trunk, batch, clock, fill=True)


def ours_shown(trunk: Any, batch: tuple[Tensor, Tensor], clock: Clock) -> None:
    ours(trunk, batch, clock, enable_progress_bar=True)


def ours_tuned(trunk: Any, batch: tuple[Tensor, Tensor], clock: Clock) -> None:
    with cudnn_benchmark():
        fused = {"optimizer": lambda parameters: torch.optim.AdamW(parameters, fused=True)}
        ours(trunk, batch, clock, learner=fused, deterministic=False, benchmark=True)


def ours_compiled(trunk: Any, batch: tuple[Tensor, Tensor], clock: Clock) -> None:
    from levelfield.training.callbacks import CompileTrunk

    ours(trunk, batch, clock, callbacks=[CompileTrunk("eager" if clock.part.small else "inductor")])


def metric_learning(trunk: Any, batch: tuple[Tensor, Tensor], clock: Clock) -> None:
    """pytorch-metric-learning's own loop, `MetricLossOnly`, with its loss."""
    from pytorch_metric_learning.losses import NTXentLoss
    from pytorch_metric_learning.trainers import MetricLossOnly

    class Done(Exception):  # noqa: N818
        pass

    def stop(_: Any) -> None:
        if clock.tick():
            raise Done

    images, labels = batch
    model = Embedder(trunk, images.device)
    trainer = MetricLossOnly(
        models={"trunk": model},
        optimizers={"trunk_optimizer": torch.optim.AdamW(model.parameters(), lr=1e-4)},
        batch_size=len(labels),
        loss_funcs={"metric_loss": NTXentLoss()},
        dataset=range(10**6),
        collate_fn=lambda numbers: batch,
        iterations_per_epoch=10**4,
        data_device=images.device,
        dataloader_num_workers=0,
        freeze_trunk_batchnorm=True,
        end_of_iteration_hook=stop,
    )
    with suppress(Done):
        trainer.train(num_epochs=1)


@contextmanager
def cudnn_benchmark() -> Iterator[None]:
    before, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


CONTENDERS: dict[str, Callable[[Any, tuple[Tensor, Tensor], Clock], None]] = {
    "bare loop": bare,
    "bare loop, cuDNN benchmark, fused AdamW": bare_tuned,
    "ours, as `levelfield fit`": ours,
    "ours, new memory filled": ours_filled,
    "ours, with a progress bar": ours_shown,
    "ours, cuDNN benchmark, fused AdamW, not deterministic": ours_tuned,
    "pytorch-metric-learning, its loop and loss": metric_learning,
}
COMPILED = {"ours, compiled trunk": ours_compiled}  # which takes a minute before its first step


def training(part: Part) -> None:
    trunks, batches, side = (("resnet50", "bn_inception"), (128, 32, 512), 224)
    if part.small:
        trunks, batches, side = (("test_resnet", "bn_inception"), (8,), 32)
    columns = ("trunk", "batch", "loop", "ms a step", "images/s", "of the bare loop", "peak MiB")
    table = Table(part.file, f"Training steps, {side} px, bfloat16", *columns)
    runs = [(trunk, size, CONTENDERS) for size in batches for trunk in trunks] + [(trunks[0], batches[0], COMPILED)]
    bare_seconds: dict[tuple[str, int], float] = {}
    for trunk, size, contenders in runs:
        batch = (torch.rand(size, 3, side, side, device=part.device), torch.arange(size, device=part.device) // 4)
        for name, contender in contenders.items():
            if part.left < (40 if contenders is COMPILED else 5) and not part.small:
                table.row(trunk, size, name, *["no time left"] * 4)
                continue
            clock, found = Clock(part, seconds=0.1 if part.small else 2.0), {}
            try:
                with part.peak(found):
                    contender(network(trunk), batch, clock)
            except Exception as error:
                table.row(trunk, size, name, in_a_line(error), "", "", "")
                continue
            seconds = clock.step_seconds
            of_bare = bare_seconds.setdefault((trunk, size), seconds if name == "bare loop" else float("nan")) / seconds
            cells = (f"{seconds * 1e3:.2f}", f"{size / seconds:,.0f}", f"{of_bare:.2f}", found["MiB"])
            table.row(trunk, size, name, *cells)


def losses(part: Part) -> None:
    from losses import CASES, DIM, SAMPLES_PER_CLASS, batch, build, floor
    from pytorch_metric_learning import losses as peers

    from levelfield import losses as own

    sizes = (16, 32) if part.small else (512, 2048, 8192, 16384)
    peer_bytes = 2**30 if part.small else 48 * 2**30
    columns = ("loss", "N", "ours, ms", "peer, ms", "floor, ms", "ours / floor", "peak MiB")
    table = Table(part.file, f"Losses, forward + backward, D = {DIM}, {SAMPLES_PER_CLASS} samples a class", *columns)

    def milliseconds(loss: Callable[[Tensor, Tensor], Tensor], embeddings: Tensor, labels: Tensor) -> float:
        clock = Clock(part, 0.02 if part.small else 0.1, warm_up=3)
        while not clock.tick():
            embeddings.grad = None
            loss(embeddings, labels).backward()
        return clock.step_seconds * 1e3

    def attempted(loss: Callable[[Tensor, Tensor], Tensor], *points: Tensor) -> tuple[str, float]:
        try:
            found = milliseconds(loss, *points)
        except Exception as error:
            return in_a_line(error), float("nan")
        return f"{found:.3f}", found

    for n in sizes:
        for case in CASES:
            if case.kind == "search" and n > 128:
                continue  # the papers' warning: a step is seconds
            if part.left < 5 and not part.small:
                table.row(case.name, n, *["no time left"] * 5)
                break
            embeddings, labels = (each.detach().to(part.device) for each in batch(n))
            embeddings.requires_grad_()
            classes = n // SAMPLES_PER_CLASS
            sized = {"num_classes": classes, "embedding_size": DIM} if case.kind == "class" else {}
            loss = build(case, n)[0].to(part.device)
            weights = torch.randn(classes * case.centers, DIM, device=part.device, requires_grad=True)
            found: dict[str, str] = {}
            least, least_ms = attempted(floor(case.kind, weights), embeddings, labels)
            with part.peak(found):
                text, milli = attempted(loss, embeddings, labels)
            theirs = "-"
            if case.peer_bytes is not None and case.peer_bytes(n) < peer_bytes:
                peer = getattr(peers, case.name)(**sized, **case.arguments).to(part.device)
                theirs, _ = attempted(peer, embeddings, labels)
            ratio = f"{milli / least_ms:.1f}"
            table.row(case.name.removesuffix("Loss"), n, text, theirs, least, ratio, found["MiB"])

    n = 32 if part.small else 2048
    title = f"Losses at {n} by torch.compile, forward + backward; the first call compiles"
    table = Table(part.file, title, "loss", "plain, ms", "compiled, ms", "first call, s")
    for name in ("NTXentLoss", "MultiSimilarityLoss", "TripletMarginLoss")[: 1 if part.small else None]:
        if part.left < 20 and not part.small:
            table.row(name.removesuffix("Loss"), *["no time left"] * 3)
            continue
        embeddings, labels = (each.detach().to(part.device) for each in batch(n))
        loss = getattr(own, name)()
        compiled = torch.compile(loss, backend="aot_eager" if part.small else "inductor")
        plain, _ = attempted(loss, embeddings.requires_grad_(), labels)
        begin = time.perf_counter()
        with suppress(Exception):  # `attempted` says which
            compiled(embeddings, labels).backward()
        first = time.perf_counter() - begin
        table.row(name.removesuffix("Loss"), plain, attempted(compiled, embeddings, labels)[0], f"{first:.1f}")


def retrieval(part: Part) -> None:
    from retrieval import NEIGHBOR_METRICS, SIZES, bare_product, embedding_space, measure

    from levelfield.metrics import retrieval_metrics

    sop, million = ((600, 32, 100), (2_000, 32, 400)) if part.small else (SIZES["sop"], (1_000_000, 512, 200_000))
    table = Table(part.file, "Retrieval", "items", "what", "s", "peak MiB", "MAP@R")
    warm = [each.to(part.device) for each in embedding_space(500, 32, 100)]
    retrieval_metrics(*warm)
    bare_product(warm[0])

    def run(items: int, what: str, call: Callable[[], Any]) -> float:
        try:
            seconds, _, added = measure(call, part.device)
        except Exception as error:
            table.row(f"{items:,}", what, in_a_line(error), "", "")
            return float("inf")
        score = results.pop().get("map_at_r", "-") if results else "-"
        score = score if isinstance(score, str) else f"{score:.5f}"
        table.row(f"{items:,}", what, f"{seconds:.2f}", f"{added:,.0f}", score)
        return seconds

    results: list[dict[str, Any]] = []
    for items, dim, classes in (sop, million):
        embeddings, labels = (each.to(part.device) for each in embedding_space(items, dim, classes))

        def score(**settings: Any) -> None:
            results.append(retrieval_metrics(embeddings, labels, **settings))  # noqa: B023 called before the next

        run(items, "bare product", lambda: bare_product(embeddings))  # noqa: B023
        sample = max(items // 50, 100)
        drawn = run(
            items, f"MAP@R, RP, P@1, R@k of {sample:,} queries",
            lambda: score(metrics=NEIGHBOR_METRICS, num_queries=sample),  # noqa: B023
        )  # fmt: skip
        for budget in (400, 8192):
            if (expected := drawn * items / sample) > part.left:
                table.row(f"{items:,}", f"all queries, {budget} MiB", f"no time left for some {expected:.0f}", "", "")
                continue
            run(
                items, f"MAP@R, RP, P@1, R@k, {budget} MiB",
                lambda: score(metrics=NEIGHBOR_METRICS, memory_budget=budget * 2**20),  # noqa: B023
            )  # fmt: skip
        if items == sop[0]:
            run(items, "all, with MAP and MRR", score)


def made_images(folder: Path, classes: int, each: int, width: int, height: int) -> None:
    """JPEG files of coloured clouds, a folder a class."""
    import numpy as np
    from PIL import Image

    draw = np.random.default_rng(0)
    for label in range(classes):
        place = folder / f"class{label:03d}"
        place.mkdir(parents=True)
        for number in range(each):
            small = draw.integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8)
            Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC).save(place / f"{number}.jpg")


def input_path(part: Part) -> None:
    from levelfield.data.datamodule import MetricDataModule
    from levelfield.data.datasets import ImageFolder
    from levelfield.data.transforms import ImageTransforms

    classes, each = (24, 4) if part.small else (100, 20)
    side, resize, size = (32, 40, 8) if part.small else (224, 256, 128)
    numbers = (0, 2) if part.small else (0, 4, 8, part.cores)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LEVELFIELD_CACHE"] = str(Path(folder, "cache"))
        images = Path(folder, "images")
        made_images(images, classes, each, *((64, 48) if part.small else (500, 375)))

        def data(cache: bool, workers: int) -> MetricDataModule:
            return MetricDataModule(
                ImageFolder(images), batch_size=size, samples_per_class=4, steps_per_epoch=500 if part.small else 4000,
                num_workers=workers, cache=cache, transforms=ImageTransforms(crop_size=side, resize=resize),
            )  # fmt: skip

        shape = "64 x 48" if part.small else "500 x 375"
        title = f"Training batches of {size} x {side} px, from {classes * each:,} JPEG files of {shape} px"
        table = Table(part.file, title, "from", "loader processes", "images/s")
        for cache in (True, False):
            for workers in dict.fromkeys(numbers):
                source = "cache" if cache else "files"
                if part.left < 25 and not part.small:
                    table.row(source, workers, "no time left")
                    continue
                try:
                    samples = data(cache, workers)
                    samples.setup("fit")
                    clock = Clock(part, 0.1 if part.small else 3.0, warm_up=max(2, 2 * workers))
                    for _ in samples.train_dataloader():
                        if clock.tick():
                            break
                    table.row(source, workers, f"{size / clock.step_seconds:,.0f}")
                except Exception as error:
                    table.row(source, workers, in_a_line(error))
        whole_training(part, data(True, numbers[-1]), side, size)


def whole_training(part: Part, samples: Any, side: int, size: int) -> None:
    """A fit from the cache, so that one sees whether the input or the network is what one waits for."""
    from lightning.pytorch import Callback, LightningModule, Trainer

    from levelfield.losses import NTXentLoss
    from levelfield.training.learner import MetricLearner

    trunk = "test_resnet" if part.small else "resnet50"
    table = Table(part.file, f"Training from the cache, {trunk}, {side} px, bfloat16", "loader processes", "images/s")
    clock = Clock(part, 0.1 if part.small else 8.0, warm_up=40)

    class Enough(Callback):
        def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any) -> None:
            trainer.should_stop = clock.tick()

    learner = MetricLearner(network(trunk), NTXentLoss(), embedding_size=EMBEDDING_SIZE)
    Trainer(
        accelerator="cpu" if part.small else "gpu", devices=1, max_epochs=2, precision="bf16-mixed", logger=False,
        limit_val_batches=0, num_sanity_val_steps=0, enable_checkpointing=False, enable_model_summary=False,
        enable_progress_bar=False, use_distributed_sampler=False, deterministic="warn", callbacks=[Enough()],
    ).fit(learner, datamodule=samples)  # fmt: skip
    table.row(samples.num_workers, f"{size / clock.step_seconds:,.0f}")


PARTS = {"training": training, "losses": losses, "retrieval": retrieval, "input": input_path}


def machine(device: str, cores: int) -> str:
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    cuda = f", CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}" if device == "cuda" else ""
    return f"{name}, {cores} cores, torch {torch.__version__}{cuda}, Python {platform.python_version()}"


def do_part(name: str, options: argparse.Namespace, seconds: float) -> str:
    """What a part wrote, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        file, log = Path(folder, "table.md"), Path(folder, "log.txt")
        file.touch()
        command = [sys.executable, __file__, "--part", name, "--device", options.device, "--output", str(file)]
        command += ["--cores", str(options.cores), "--minutes", str(seconds / 60)]
        begin = time.perf_counter()
        failure = ""
        with log.open("w") as words:
            try:
                done = subprocess.run(command, stdout=words, stderr=words, timeout=seconds + 20)
                if done.returncode:
                    failure = f"ended with {done.returncode}"
            except subprocess.TimeoutExpired:
                failure = f"was stopped after {seconds + 20:.0f} s"
        text = f"\n## {name.capitalize()} ({time.perf_counter() - begin:.0f} s)\n{file.read_text()}"
        if failure:
            last = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            text += f"\nThis part {failure}:\n\n```\n{last}\n```\n"
        return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--minutes", type=float, default=8.3, help="for all parts together")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)), help="the most loader processes")
    parser.add_argument("--output", type=Path, default=Path("outputs/benchmarks/gpu.md"))
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("there is no CUDA device: --device cpu runs the miniature")
    if options.part is not None:
        warnings.simplefilter("ignore")
        PARTS[options.part](Part(options.device, options.minutes * 60, options.output, options.cores))
        return
    end = time.perf_counter() + options.minutes * 60
    options.output.parent.mkdir(parents=True, exist_ok=True)
    text = f"# GPU benchmark\n\n{machine(options.device, options.cores)}\n"
    for number, name in enumerate(options.parts):
        rest = sum(SHARES[each] for each in options.parts[number:])
        text += do_part(name, options, max((end - time.perf_counter()) * SHARES[name] / rest - 12, 10))
        options.output.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
