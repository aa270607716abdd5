"""What a job of a study costs beside its steps, a step beside the bare loop, and how many jobs a minute workers do.

python benchmarks/jobs.py [--workers 1 2] [--before CHECKOUT]
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch.nn.functional import normalize

from levelfield.study.folder import StudyFolder
from levelfield.study.jobs import Job, Task, job_config
from levelfield.study.rows import load_spec
from levelfield.study.same_study import row_sources
from levelfield.study.spec import StudySpec
from levelfield.study.state import setting
from levelfield.study.training_job import fixed_threads, run_job
from levelfield.training.build import Training
from levelfield.training.embed import TrunkExtractor

METHODS = ("contrastive", "arcface", "multi_similarity")
HERE = Path(__file__).resolve().parents[1]
STUDY = "configs/study/laptop/glyphs.yaml"
SMALL = {"data.dataset.num_classes": 240}
STEPS = 200


def spec(steps: int, **more: object) -> StudySpec:
    """Trainings of so many steps and one validation, of 960 letters."""
    return load_spec(HERE / STUDY, {**SMALL, "data.steps_per_epoch": steps, "trainer.max_epochs": 1, **more})


def job_seconds(steps: int, folder: Path) -> dict[str, tuple[float, float]]:
    """Method to the median wall and CPU seconds of its jobs in a process that has done one before."""
    # With random search: a trial's setting follows from its number alone.
    study = StudyFolder(folder, spec(steps, **{"search.sampler": "random"}))
    data = Training(study.test_config("contrastive"), folder / "look").build().datamodule.identity()["fingerprint"]
    sources = row_sources(study.spec)
    found: dict[str, list[tuple[float, float]]] = {method: [] for method in METHODS}
    for turn, (fold, method) in enumerate((fold, method) for fold in range(4) for method in METHODS):
        job = Job(method, "trial", 0, fold)
        task = Task(study.spec, folder, job, setting(study.spec, job, []), sources[method], data, None)
        wall, cpu = time.perf_counter(), time.process_time()
        run_job(task)
        if turn >= len(METHODS):
            found[method].append((time.perf_counter() - wall, time.process_time() - cpu))
    return {method: tuple(map(statistics.median, zip(*times, strict=True))) for method, times in found.items()}  # type: ignore[misc]


def bare_seconds(method: str, folder: Path) -> tuple[float, float]:
    """Wall and CPU seconds of a step of a plain loop with the same features, sampler, loss and AdamW; best of three."""
    study = spec(STEPS)
    training = Training(job_config(study, Job(method, "run", 0, 0), {}), folder).build()
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


def minute(checkout: Path, workers: int, threads: int, seconds: float, folder: Path) -> float:
    """Jobs that a checkout's study ends in a minute: random search, so that no suggestion is waited for."""
    options = {**SMALL, "trainer.max_epochs": 8, "search.trials": 50, "search.sampler": "random", "runs": 1}
    words = [f"--{key}={value}" for key, value in {**options, "threads": threads, "output": folder}.items()]
    command = [sys.executable, "-m", "levelfield", "study", "run", STUDY, f"--executor.workers={workers}", *words]
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": str(threads)}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, cwd=checkout, env=environment, **quiet)

    def done() -> int:
        return sum(1 for _ in folder.glob("jobs/*/trial*/*/result.json"))

    try:
        while done() < 4 * workers and process.poll() is None:  # the imports, the first build, the untrained rows
            time.sleep(0.1)
        before, started = done(), time.monotonic()
        while time.monotonic() - started < seconds and process.poll() is None:
            time.sleep(0.1)
        return 60 * (done() - before) / (time.monotonic() - started)
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--before", type=Path, help="another checkout, whose studies run in turn with this one's")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--only-jobs", action="store_true", help="leave out the costs of a job and of a step")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, fixed_threads(1):
        folder = Path(name)
        if not asked.only_jobs:
            print_costs(folder)
        checkouts = {"before": asked.before.resolve(), "now": HERE} if asked.before else {"now": HERE}
        for workers in asked.workers:
            turns = [
                {
                    title: minute(each, workers, asked.threads, asked.seconds, folder / f"{workers}_{turn}_{title}")
                    for title, each in checkouts.items()
                }
                for turn in range(asked.turns)
            ]
            found = [f"{title} {statistics.median(turn[title] for turn in turns):.0f}" for title in checkouts]
            if asked.before:
                ratios = sorted(turn["now"] / turn["before"] for turn in turns)
                found.append(f"now / before {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
            print(f"\n{workers} workers, {asked.threads} threads, jobs a minute: {', '.join(found)}", flush=True)


def print_costs(folder: Path) -> None:
    few, many = job_seconds(1, folder / "few"), job_seconds(1 + STEPS, folder / "many")
    print("| loss | job of one step, s | of CPU | step, ms of CPU | bare loop | ratio |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for method in METHODS:
        step = (many[method][1] - few[method][1]) / STEPS
        bare = bare_seconds(method, folder / "bare")[1]
        whole = f"{few[method][0]:.2f} | {few[method][1]:.2f}"
        print(f"| {method} | {whole} | {1e3 * step:.2f} | {1e3 * bare:.2f} | {step / bare:.2f} |", flush=True)


if __name__ == "__main__":
    main()
