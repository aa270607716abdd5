"""What the loss costs a process that shares the batch with others: its rows alone, beside the whole loss.

Forward + backward at the gathered embeddings, D = 128, 4 samples a class, float32, gloo, one thread a process. CPU
seconds of the first process, the least of several steps, the two by turns; the collectives are in them, the wait for
others is not.

    python benchmarks/ranks.py                               # 2 processes, batches of 512 and 2,048
    python benchmarks/ranks.py --processes 3 --sizes 768 --losses NTXentLoss
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from levelfield import losses

LOSSES = ["ContrastiveLoss", "NTXentLoss", "MultiSimilarityLoss", "TripletMarginLoss", "FastAPLoss", "AngularLoss"]
WITH_CLASSES = {"ArcFaceLoss": 10_000, "ProxyTripletLoss": 10_000}


def step(loss: losses.MetricLoss, value: Callable[[Tensor, Tensor], Tensor], size: int) -> float:
    """CPU seconds of a forward and backward pass."""
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.nn.functional.normalize(torch.randn(size, 128, generator=generator)).requires_grad_()
    labels = torch.arange(size) // 4
    torch.manual_seed(0)
    loss.zero_grad()
    begin = time.process_time()
    value(embeddings, labels).backward()
    return time.process_time() - begin


def measure(names: list[str], sizes: list[int], repeats: int, processes: int) -> list[str]:
    lines = [f"| loss | batch | whole, ms | rows, ms | of the whole, {processes} processes |", "|---|---|---|---|---|"]
    for name in names:
        sized = {"num_classes": WITH_CLASSES[name], "embedding_size": 128} if name in WITH_CLASSES else {}
        loss = getattr(losses, name)(**sized)
        for size in sizes:
            turns = [(step(loss, loss, size), step(loss, loss.over_ranks, size)) for _ in range(repeats + 1)]
            whole, rows = (min(each) for each in zip(*turns[1:], strict=True))
            lines.append(f"| {name} | {size} | {whole * 1e3:.1f} | {rows * 1e3:.1f} | {rows / whole:.2f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--sizes", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--losses", nargs="+", default=[*LOSSES, *WITH_CLASSES])
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        ranks = range(given.processes)
        rank = next((rank for rank in ranks[1:] if os.fork() == 0), 0)  # the first stays this process
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=given.processes)
        lines = measure(given.losses, given.sizes, given.repeats, given.processes)
        dist.destroy_process_group()
        if rank > 0:
            os._exit(0)
        print("\n".join(lines))
        sys.exit(max(os.waitstatus_to_exitcode(os.wait()[1]) for _ in ranks[1:]))


if __name__ == "__main__":
    main()
