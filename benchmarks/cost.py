"""What the whole Reality Check costs: 3 data sets x 14 methods x (50 trials + 10 runs) x 4 folds.

    python benchmarks/cost.py                                   # measures this machine's CPU; needs no data, no weights
    python benchmarks/cost.py --images_per_second 1000 --gpus 1 8 64   # of GPUs that train so fast: measures nothing
    python benchmarks/cost.py --images_per_second 1000 --eval_images_per_second 3000 --longer 3 --gpus 8

The jobs, steps and evaluations are those of the study files, a training being as long as one that stops at early
stopping's first chance, or `--longer` times that. What is measured is CPU seconds of one thread, for a machine that is
shared. Hours of several GPUs are those of a simulated schedule, in which a method's trials wait for each other and the
folds of one do not.
"""

import argparse
import heapq
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from lightning.pytorch.callbacks import EarlyStopping

from levelfield.metrics import retrieval_metrics
from levelfield.core.configuration import set_dotted
from levelfield.study.spec import is_baseline
from levelfield.study.rows import load_spec
from levelfield.study.dry_run.costs import training_steps
from levelfield.study.dry_run.step_time import loss_step, network_step
from levelfield.study.training_job import fixed_threads
from levelfield.study.jobs import study_jobs
from levelfield.study.state import first_config
from levelfield.training.build import TrainingCLI, build

PAPER = Path(__file__).parents[1] / "papers" / "reality_check"
STUDIES = ("table4_cub", "table5_cars", "table6_sop")
METHOD = "contrastive"  # the network is the same for all, and takes the time
MEASURED_SECONDS = 10.0


@dataclass(frozen=True)
class Part:
    """What one data set's table takes.

    Args:
        steps: of a training that stops as soon as it can.
        evaluations: of the validation fold in it.
        val_images: of a fold.
        test_images: that each run's checkpoints embed, and the untrained trunk.
    """

    name: str
    methods: int
    trials: int
    folds: int
    runs: int
    batch: int
    steps: float
    evaluations: int
    most_steps: float
    val_images: int
    test_images: int

    @property
    def trainings(self) -> int:
        return self.methods * (self.trials + self.runs) * self.folds


@dataclass(frozen=True)
class Speed:
    """Images a second of one device in training and in embedding, and seconds to score a fold."""

    training: float
    embedding: float
    scoring: Callable[[int], float] = lambda images: 0.0

    def seconds(self, part: Part, longer: float) -> tuple[float, float]:
        """Of one training: its steps, and its evaluations."""
        evaluation = part.val_images / self.embedding + self.scoring(part.val_images)
        return longer * part.steps * part.batch / self.training, longer * part.evaluations * evaluation

    def test_seconds(self, part: Part) -> float:
        """Of one checkpoint."""
        return part.test_images / self.embedding


def read_part(study: str, folder: Path) -> tuple[Part, TrainingCLI]:
    spec = load_spec(PAPER / f"{study}.yaml")
    config = set_dotted(first_config(spec, METHOD), "model.trunk.weights", None)  # a download, and as fast without
    training = build(config, folder, progress=False)
    data, trainer = training.datamodule, training.trainer
    least, most = training_steps(trainer, data.steps_per_epoch)
    (stop,) = (each for each in trainer.callbacks if isinstance(each, EarlyStopping))  # type: ignore[attr-defined]
    jobs = [job for job in study_jobs(spec) if not is_baseline(job.method)]
    half = data.dataset.num_samples_published // 2  # type: ignore[operator]
    part = Part(
        name=study.rpartition("_")[2],
        methods=len({job.method for job in jobs}),
        trials=spec.trials(METHOD),
        folds=spec.folds,
        runs=spec.runs,
        batch=data.batch_size,
        steps=least,
        evaluations=stop.patience + 1,
        most_steps=most,
        val_images=half // spec.folds,
        test_images=half,
    )
    assert part.trainings == len(jobs)
    return part, training


def waiting(parts: Iterable[Part], speed: Speed, workers: int, longer: float) -> float:
    """Seconds until `workers` have done the trainings of all methods: a trial waits for the folds of the one before.

    Who is free takes a fold of the method that has most ahead of it.
    """
    chains = [
        [(part.folds, sum(speed.seconds(part, longer)))] * part.trials
        + [(part.folds * part.runs, sum(speed.seconds(part, longer)))]
        for part in parts
        for _ in range(part.methods)
    ]
    stage, to_begin, to_end = [0] * len(chains), [chain[0][0] for chain in chains], [chain[0][0] for chain in chains]
    ahead = [(-sum(seconds for _, seconds in chain), number) for number, chain in enumerate(chains)]
    heapq.heapify(ahead)
    running: list[tuple[float, int]] = []
    now = 0.0
    while ahead or running:
        while ahead and len(running) < workers:
            number = ahead[0][1]
            to_begin[number] -= 1
            heapq.heappush(running, (now + chains[number][stage[number]][1], number))
            if not to_begin[number]:
                heapq.heappop(ahead)
        now, number = heapq.heappop(running)
        to_end[number] -= 1
        if not to_end[number] and stage[number] + 1 < len(chains[number]):
            stage[number] += 1
            rest = chains[number][stage[number] :]
            to_begin[number] = to_end[number] = rest[0][0]
            heapq.heappush(ahead, (-sum(seconds for _, seconds in rest), number))
    return now


def cpu_seconds(call: Callable[[], object], seconds: float = MEASURED_SECONDS) -> float:
    """The least CPU time of a call, after one that does not count: what else runs can only add to it."""
    call()
    found: list[float] = []
    while not found or sum(found) < seconds:
        begin = time.process_time()
        call()
        found.append(time.process_time() - begin)
    return min(found)


def score_seconds(images: int) -> float:
    """Of a fold of classes of 12 images: MAP@R and what else a validation logs."""
    embeddings = torch.nn.functional.normalize(torch.randn(images, 128, generator=torch.Generator().manual_seed(0)))
    return cpu_seconds(lambda: retrieval_metrics(embeddings, torch.arange(images) // 12), 1.0)


def input_table(side: int, resize: int) -> None:
    """Pictures a second and core that come from files and from the cache, in training and in evaluation."""
    from gpu import made_images

    from levelfield.data.datamodule import MetricDataModule
    from levelfield.data.datasets import ImageFolder
    from levelfield.data.transforms import ImageTransforms

    def rate(batches: Iterator) -> float:
        next(batches)
        begin = time.process_time()
        count = sum(len(batch["labels"] if isinstance(batch, dict) else batch[1]) for batch in islice(batches, 6))
        return count / (time.process_time() - begin)

    print("\n| pictures of 500 x 375 px from | training, pictures / CPU s | evaluation, pictures / CPU s |")
    print("| --- | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LEVELFIELD_CACHE"] = str(Path(folder, "cache"))
        made_images(Path(folder, "images"), 80, 8, 500, 375)
        for name, cache in (("files", False), ("the cache", True)):
            data = MetricDataModule(
                ImageFolder(Path(folder, "images")), batch_size=32, samples_per_class=4, num_workers=0, cache=cache,
                transforms=ImageTransforms(crop_size=side, resize=resize),
            )  # fmt: skip
            data.setup("fit")
            train, evaluation = rate(iter(data.train_dataloader())), rate(iter(data.train_samples()))
            print(f"| {name} | {train:,.0f} | {evaluation:,.0f} |")


def measured(training: TrainingCLI) -> Speed:
    """On this machine, one thread."""
    learner, transforms = training.model, training.datamodule.transforms
    batch = training.datamodule.batch_size
    step = cpu_seconds(network_step(training)) + cpu_seconds(loss_step(training), 1.0)
    images = torch.rand(batch, 3, transforms.crop_size, transforms.crop_size)
    learner.eval()
    with torch.inference_mode():
        forward = cpu_seconds(lambda: learner(images))
    scores: dict[int, float] = {}

    def scoring(images: int) -> float:
        if images not in scores:
            scores[images] = score_seconds(images)
        return scores[images]

    print(f"| {batch} images of {transforms.crop_size} px | CPU s | images / CPU s |\n| --- | ---: | ---: |")
    print(f"| training step | {step:.2f} | {batch / step:.1f} |")
    print(f"| embedding | {forward:.2f} | {batch / forward:.1f} |")
    return Speed(batch / step, batch / forward, scoring)


def core_table(parts: list[Part], speed: Speed, longer: float, cores: int) -> None:
    print("\n| table | trainings | steps of one | hours of a core: steps | evaluations | test | together |", end="")
    print(f" hours of {cores} cores |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    whole = [0.0] * 3
    for part in parts:
        each = [part.trainings * seconds for seconds in speed.seconds(part, longer)]
        each += [(part.methods * part.runs * part.folds + 1) * speed.test_seconds(part)]
        whole = [sum(pair) for pair in zip(whole, each, strict=True)]
        _row(part.name, f"{part.trainings:,}", f"{longer * part.steps:,.0f}", *_hours(each, cores))
    _row("all", f"{sum(part.trainings for part in parts):,}", "", *_hours(whole, cores))


def gpu_table(parts: list[Part], speed: Speed, longer: float, gpus: list[int]) -> None:
    columns = (
        "GPUs",
        "hours, table after table",
        "hours, all at once",
        "waiting",
        "steps, of the work",
    )
    print(f"\n| {' | '.join(columns)} |\n|{' ---: |' * len(columns)}")
    steps, evaluations = (sum(part.trainings * speed.seconds(part, longer)[n] for part in parts) for n in (0, 1))
    tests = sum((part.methods * part.runs * part.folds + 1) * speed.test_seconds(part) for part in parts)
    for count in gpus:
        together = waiting(parts, speed, count, longer)
        in_turn = sum(waiting([part], speed, count, longer) for part in parts)
        idle = max(0.0, 1 - (steps + evaluations) / (count * together))
        hours = (f"{(seconds + tests / count) / 3600:,.1f}" for seconds in (in_turn, together))
        _row(count, *hours, f"{idle:.0%}", f"{steps / (steps + evaluations + tests):.0%}")
    last = max(parts, key=lambda part: (part.trials + 1) * sum(speed.seconds(part, longer)))
    hours = (last.trials + 1) * sum(speed.seconds(last, longer)) / 3600
    print(f"\nNo number of GPUs takes less than {hours:.1f} hours: {last.trials} trials and a run of {last.name}.")


def _row(*cells: object) -> None:
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def _hours(each: list[float], cores: int) -> list[str]:
    return [f"{seconds / 3600:,.0f}" for seconds in (*each, sum(each), sum(each) / cores)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images_per_second", type=float, help="of a GPU in training: benchmarks/gpu.py prints it")
    parser.add_argument("--eval_images_per_second", type=float, help="in embedding; by default as in training")
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--longer", type=float, default=1.0, help="a training's length over the least")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)), help="of this machine")
    options = parser.parse_args()
    with fixed_threads(1), tempfile.TemporaryDirectory() as folder:
        read = [read_part(study, Path(folder)) for study in STUDIES]
        parts, training = [part for part, _ in read], read[0][1]
        if options.images_per_second is not None:
            embedding = options.eval_images_per_second or options.images_per_second
            gpu_table(parts, Speed(options.images_per_second, embedding), options.longer, options.gpus)
            return
        name = platform.processor() or platform.machine()
        print(f"{name}, one thread, torch {torch.__version__}, load {os.getloadavg()[0]:.1f} as it began\n")
        speed = measured(training)
        core_table(parts, speed, options.longer, options.cores)
        transforms = training.datamodule.transforms
        input_table(transforms.crop_size, transforms.resize)


if __name__ == "__main__":
    main()
