"""Step time and memory of a loss with many classes: all of them, or 10% or 1% of them drawn, on 1 and 2 processes.

A step is forward, backward and optimizer of `ArcFaceLoss(shard_classes=True)` on a batch of 256 embeddings, with
`LazyAdamW`, which is torch's AdamW where all classes are in play. Each row of the table has processes of its own, one
thread each; two of them share the classes over gloo, and the slower one is shown. CPU time, user's and system's, tells
more where something else runs. Memory is the peak that one process takes beyond the import, every page of the
optimizer's moments touched.

    python benchmarks/classes.py                             # one row takes up to 9 GiB (--gib)
    python benchmarks/classes.py --classes 10000 1000000 --sizes 128 --processes 1
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import sys
import tempfile
import time
from itertools import product

import torch
import torch.distributed as dist

from levelfield.losses import ArcFaceLoss
from levelfield.training.lazy_adamw import LazyAdamW

BATCH = 256
GIB = 2**30


def held_bytes(classes: int, size: int, share: float, processes: int) -> float:
    """Weights and moments; of the rows in play the unit vectors, the gradients and the logits too, roughly."""
    rows = classes / processes
    return 4 * rows * (3 * size + (4 * size + 5 * BATCH) * share)


def steps(
    rank: int, case: tuple[int, int, float, int], seconds: float, folder: str, told: multiprocessing.Queue
) -> None:
    """Tells (wall, CPU seconds a step, peak bytes) of this process."""
    classes, size, share, processes = case
    torch.set_num_threads(1)
    if processes > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=processes)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    torch.manual_seed(0)
    loss = ArcFaceLoss(classes, size, class_fraction=share, shard_classes=True)
    optimizer = LazyAdamW(loss.parameters(), lr=1e-3)
    embeddings = torch.randn(BATCH, size, requires_grad=True)

    def step(number: int) -> tuple[float, float]:
        torch.manual_seed(number)
        labels = torch.randint(classes, (BATCH,))
        wall, cpu = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        embeddings.grad = None
        loss(embeddings, labels).backward()
        optimizer.step()
        return time.perf_counter() - wall, time.process_time() - cpu

    step(0)
    for moment in optimizer.state[loss.class_weights].values():
        moment.add_(0)  # each page is there, as after many steps
    step(1)
    taken: list[tuple[float, float]] = []
    while len(taken) < 3 or (processes == 1 and sum(wall for wall, _ in taken) < seconds and len(taken) < 1000):
        taken.append(step(2 + len(taken)))
    if processes > 1:  # as many steps on each
        left = torch.tensor([max(0.0, seconds / statistics.median(wall for wall, _ in taken) - len(taken))])
        dist.all_reduce(left, dist.ReduceOp.MAX)
        taken += [step(100 + number) for number in range(min(int(left), 1000))]
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    told.put((statistics.median(wall for wall, _ in taken), statistics.median(cpu for _, cpu in taken), peak))
    if processes > 1:
        dist.destroy_process_group()


def measure(case: tuple[int, int, float, int], seconds: float) -> tuple[float, float, float]:
    """The slowest process' wall and CPU seconds, and the largest one's bytes."""
    forked = multiprocessing.get_context("fork")
    told = forked.Queue()
    with tempfile.TemporaryDirectory() as folder:
        workers = [forked.Process(target=steps, args=(rank, case, seconds, folder, told)) for rank in range(case[3])]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    if any(worker.exitcode for worker in workers):
        sys.exit(f"{case} failed: look above")
    found = [told.get() for _ in workers]
    return max(wall for wall, _, _ in found), max(cpu for _, cpu, _ in found), max(peak for _, _, peak in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, nargs="+", default=[10**4, 10**5, 10**6])
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 512], help="embedding sizes")
    parser.add_argument("--shares", type=float, nargs="+", default=[1.0, 0.1, 0.01], help="class_fraction")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=5.0, help="of steps a row")
    parser.add_argument("--gib", type=float, default=9.0, help="leave out what takes more memory in all")
    arguments = parser.parse_args()
    print("| classes | D | in play | processes | ms a step | CPU ms | of the first row's CPU | peak MiB |", flush=True)
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |", flush=True)
    for size in arguments.sizes:
        first = None
        for case in product(arguments.processes, arguments.classes, arguments.shares):
            processes, classes, share = case
            if held_bytes(classes, size, share, processes) * processes > arguments.gib * GIB:
                continue
            wall, cpu, peak = measure((classes, size, share, processes), arguments.seconds)
            first = first or cpu
            cells = (f"{classes:,}", size, f"{share:.0%}", processes, f"{1e3 * wall:.1f}", f"{1e3 * cpu:.1f}")
            print("|", " | ".join(map(str, cells)), f"| {cpu / first:.2f} | {peak / 2**20:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
