"""Peak memory and time of a training step whose batch is embedded whole, and in chunks (`GradientCaching`).

python benchmarks/chunks.py [--batches 64 256 1024] [--chunk 64] [--largest-whole 256]

EfficientNet-Lite0 at 64 px with random weights, batch norm in eval mode, the multi-similarity loss and AdamW, a batch
of noise that lies in memory. Memory: what a process of its own takes at most during two steps beyond what it has
before them (Linux). Time: user CPU seconds of steps by turns in one process, the median of their ratios.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from levelfield.losses import MultiSimilarityLoss
from levelfield.models import TimmTrunk
from levelfield.training.batches import Batch
from levelfield.training.callbacks import GradientCaching
from levelfield.training.learner import MetricLearner

SIDE = 64


class Steps:
    """A learner's training steps on one batch, without a Trainer."""

    def __init__(self, batch: int, threads: int) -> None:
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        self.learner = MetricLearner(TimmTrunk("tf_efficientnet_lite0", weights=None), MultiSimilarityLoss())
        self.optimizer = self.learner.configure_optimizers()
        self.batch = Batch(torch.rand(batch, 3, SIDE, SIDE), torch.arange(batch) // 4)

    def step(self, chunk: int | None) -> float:
        """User CPU seconds of a step."""
        before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
        vars(self.learner).pop("embed_batch", None)
        if chunk is not None:
            GradientCaching(chunk).wrap(self.learner)
        loss = self.learner.compute_loss(self.learner.embed_batch(self.batch), self.batch.labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return resource.getrusage(resource.RUSAGE_SELF).ru_utime - before


def memory(batch: int, chunk: int | None, threads: int) -> float:
    """MiB that two steps take at most, beyond the process before them."""
    steps = Steps(batch, threads)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    for _ in range(2):
        steps.step(chunk)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return (peak - pages * resource.getpagesize()) / 2**20


def seconds(batch: int, chunk: int, threads: int, turns: int) -> tuple[float, float]:
    """Median user CPU seconds of a step of the whole batch, and the median ratio of one in chunks to it."""
    steps = Steps(batch, threads)
    steps.step(None)
    times = [(steps.step(None), steps.step(chunk)) for _ in range(turns)]
    return statistics.median(whole for whole, _ in times), statistics.median(b / a for a, b in times)


def in_another_process(*words: object) -> Any:
    done = subprocess.run([sys.executable, __file__, *map(str, words)], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--chunk", type=int, default=64)
    parser.add_argument("--largest-whole", type=int, default=1024, help="larger batches in chunks alone")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--memory-of", type=int, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--seconds-of", type=int, nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.memory_of:
        print(json.dumps(memory(asked.memory_of[0], asked.memory_of[1] or None, asked.threads)))
        return
    if asked.seconds_of:
        print(json.dumps(seconds(*asked.seconds_of, asked.threads, asked.turns)))
        return
    threads = ("--threads", asked.threads)
    print(f"| batch | whole, MiB | chunks of {asked.chunk}, MiB | whole, CPU s | in chunks, times that |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    for batch in asked.batches:
        chunked = in_another_process("--memory-of", batch, asked.chunk, *threads)
        cells = ["-", f"{chunked:,.0f}", "-", "-"]
        if batch <= asked.largest_whole:
            whole = in_another_process("--memory-of", batch, 0, *threads)
            took, ratio = in_another_process("--seconds-of", batch, asked.chunk, *threads, "--turns", asked.turns)
            cells = [f"{whole:,.0f}", f"{chunked:,.0f}", f"{took:.2f}", f"{ratio:.2f}"]
        print(f"| {batch:,} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
