"""What a job of a study costs beside its steps, a step beside the bare loop, and how many jobs a minute workers do.

python benchmarks/jobs.py [--workers 1 2] [--busy]
"""

import argparse
import gc
import io
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from levelfield.study.environment import SeenInJobs
from levelfield.study.execution.baseline import TrunkFeatures
from levelfield.study.execution.worker import do_job, fixed_threads
from levelfield.study.jobs.attempts import Attempts
from rich.console import Console
from torch.nn.functional import normalize

from levelfield.runtime.shipped import find_configuration
from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import Job, job_config
from levelfield.study.progress import StudyProgress
from levelfield.study.rows import load_spec
from levelfield.study.spec import StudySpec
from levelfield.training.build import build
from levelfield.training.features import TrunkExtractor

METHODS = ("contrastive", "arcface", "multi_similarity")
STUDY = Path(str(find_configuration("study/laptop/glyphs.yaml") or "configs/study/laptop/glyphs.yaml"))
SMALL = {"data.dataset.num_classes": 240}
STEPS = 200


def spec(steps: int, **more: int) -> StudySpec:
    """Trainings of so many steps and one validation, of 960 letters."""
    return load_spec(STUDY, {**SMALL, "data.steps_per_epoch": steps, "trainer.max_epochs": 1, **more})


def job_seconds(steps: int, folder: Path) -> dict[str, tuple[float, float]]:
    """Method to the median wall and CPU seconds of its jobs in a process that has done one before."""
    record = StudyFolder(folder, spec(steps))
    folder.mkdir()
    record.definition_file.write_text(record.spec.to_yaml())
    progress = StudyProgress(Console(file=io.StringIO()), "jobs", record.state, {})
    features, seen = TrunkFeatures(), SeenInJobs(record)
    found: dict[str, list[tuple[float, float]]] = {method: [] for method in METHODS}
    for turn, (fold, method) in enumerate((fold, method) for fold in range(4) for method in METHODS):
        job = Job(method, "trial", 0, fold)
        wall, cpu = time.perf_counter(), time.process_time()
        attempts = Attempts.of(folder, job)
        record.state.results[job] = do_job(record, job, features, seen, progress, 30.0, attempts)
        if turn >= len(METHODS):
            found[method].append((time.perf_counter() - wall, time.process_time() - cpu))
    return {method: tuple(map(statistics.median, zip(*times, strict=True))) for method, times in found.items()}  # type: ignore[misc]


def bare_seconds(method: str, folder: Path) -> tuple[float, float]:
    """Wall and CPU seconds of a step of a plain loop with the same features, sampler, loss and AdamW; best of three."""
    study = spec(STEPS)
    training = build(job_config(study, Job(method, "run", 0, 0), {}), folder, progress=False)
    data, learner = training.datamodule, training.model
    data.setup("fit")
    learner.build_loss(data.num_train_classes)
    data.use_features(TrunkExtractor(learner.trunk, torch.device("cpu")))
    features, labels = data.evaluated(data.train_subset), torch.from_numpy(data.train_subset.labels)
    optimizer, best = learner.configure_optimizers(), (float("inf"), float("inf"))
    for _ in range(3):
        wall, cpu = time.perf_counter(), time.process_time()
        for draws in data.train_dataloader().sampler:
            rows = torch.tensor([int(draw) for draw in draws])
            loss = learner.loss(normalize(learner.embedder(features[rows])), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        best = min(best, ((time.perf_counter() - wall) / STEPS, (time.process_time() - cpu) / STEPS))
    return best


@contextmanager
def busy_core(wanted: bool) -> Iterator[None]:
    """A process beside that does nothing but spin."""
    spinning = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if wanted else None
    try:
        yield
    finally:
        if spinning is not None:
            spinning.kill()
            spinning.wait()


def minute(workers: int, threads: int, folder: Path) -> float:
    """Jobs that a study ends in a minute: random search, so that no suggestion is waited for."""
    options = {**SMALL, "trainer.max_epochs": 8, "search.trials": 3, "search.sampler": "random", "runs": 1}
    words = [f"--{key}={value}" for key, value in {**options, "threads": threads, "output": folder}.items()]
    command = [sys.executable, "-m", "levelfield", "study", "run", str(STUDY), f"--executor.workers={workers}", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)

    def done() -> int:
        return sum(1 for _ in folder.glob("jobs/*/trial*/*/result.json"))

    try:
        while done() < 4 * workers and process.poll() is None:  # the imports, the first build, the baselines
            time.sleep(0.5)
        before, started = done(), time.monotonic()
        while time.monotonic() - started < 60 and process.poll() is None:
            time.sleep(0.5)
        return 60 * (done() - before) / (time.monotonic() - started)
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--busy", action="store_true", help="a spinning process beside")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, fixed_threads(1), busy_core(asked.busy):
        folder = Path(name)
        few, many = job_seconds(1, folder / "few"), job_seconds(1 + STEPS, folder / "many")
        print("| loss | job of one step, s | of CPU | step, ms of CPU | bare loop | ratio |")
        print("| --- | ---: | ---: | ---: | ---: | ---: |")
        for method in METHODS:
            step = (many[method][1] - few[method][1]) / STEPS
            bare = bare_seconds(method, folder / "bare")[1]
            whole = f"{few[method][0]:.2f} | {few[method][1]:.2f}"
            cells = f"{whole} | {1e3 * step:.2f} | {1e3 * bare:.2f} | {step / bare:.2f}"
            print(f"| {method} | {cells} |", flush=True)
        gc.unfreeze()  # what `do_job` froze, as at the end of `work`
        for workers in asked.workers:
            jobs = minute(workers, asked.threads, folder / f"workers{workers}")
            print(f"{workers} workers, {asked.threads} threads a job: {jobs:.0f} jobs a minute", flush=True)


if __name__ == "__main__":
    main()
