"""Forward + backward time and peak memory of every loss and regularizer, beside pytorch-metric-learning and the floor.

The floor is forward + backward of the similarity matrix alone: N x N, or N x C for a loss with class weights, C being
their number (the classes in the batch, by the centres of a class), or of samples and class weights with themselves for
a loss of them all (potential field). 4 samples a class, D = 128, 2 threads. Times are
the least of several runs, ours and theirs by turns. Memory is the peak of traced allocations, in float32 buffers of N
x N (N x C; angular: positive pairs x N).

    python benchmarks/losses.py                          # all sizes, some minutes
    python benchmarks/losses.py --sizes 32 128 --losses NTXentLoss ArcFaceLoss
    python benchmarks/losses.py --launches  # the operators that start on a GPU, ours and the peer's; needs tests/
"""

from __future__ import annotations

import argparse
import gc
import itertools
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import torch
from pytorch_metric_learning import losses as peers
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from levelfield import losses, regularizers

DIM = 128
SAMPLES_PER_CLASS = 4
PEER_BYTES = 12 * 2**30
PEER_SECONDS = 60.0
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass
class Case:
    """A loss, its peer, and the memory that the peer takes at batch size N, roughly, in bytes."""

    name: str
    kind: str = "pair"  # or "angular", "class", "both", "search"
    peer_bytes: Callable[[int], float] | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    centers: int = 1  # weight vectors a class


def dense(n: int) -> float:
    return 60.0 * n * n


def pairs_by_pairs(n: int) -> float:
    return 3 * n * n * n * 20.0


def triplets(n: int) -> float:
    return 3 * n * n * 60.0 + n**3


CASES = [
    Case("ContrastiveLoss", "pair", dense),
    Case("TripletMarginLoss", "pair", triplets),
    Case("NTXentLoss", "pair", pairs_by_pairs),
    Case("NPairsLoss", "pair", dense),
    Case("LiftedStructureLoss", "pair", pairs_by_pairs),
    Case("AngularLoss", "angular", lambda n: 3 * n * n * 40.0),
    Case("MarginLoss", "pair", triplets),
    Case("MultiSimilarityLoss", "pair", dense),
    Case("SignalToNoiseRatioContrastiveLoss", "pair", lambda n: 24.0 * n * n * DIM),
    Case("FastAPLoss", "pair", lambda n: 40.0 * n * n * 11),
    Case("TupletMarginLoss", "pair", pairs_by_pairs),
    Case("CircleLoss", "pair", dense),
    Case("SoftNearestNeighborLoss"),
    Case("DecoupledContrastiveLoss"),
    Case("SupConLoss", "pair", dense),
    Case("CentroidTripletLoss"),
    Case("PrototypicalLoss"),
    Case("SmoothAPLoss", "pair", pairs_by_pairs),
    Case("PNPLoss", "pair", pairs_by_pairs, arguments={"variant": "Dq"}),
    Case("ROADMAPLoss"),
    Case("RecallAtKLoss"),
    Case("SigmoidPairLoss"),
    Case("HyperbolicCrossEntropyLoss"),
    Case("ContextualLoss"),
    Case("RankedListLoss", "pair", dense, arguments={"margin": 0.4, "Tn": 5}),
    Case("NormalizedSoftmaxLoss", "class", dense),
    Case("ProxyNCALoss", "class", dense),
    Case("ProxyTripletLoss", "class"),
    Case("ProxyAnchorLoss", "class", dense),
    Case("CosFaceLoss", "class", dense),
    Case("ArcFaceLoss", "class", dense),
    Case("SphereFaceLoss", "class", dense),
    Case("AdaFaceLoss", "class"),
    Case("MagFaceLoss", "class"),
    Case("SubCenterArcFaceLoss", "class", dense, centers=3),
    Case("SoftTripleLoss", "class", dense, centers=10),
    Case("PotentialFieldLoss", "both", centers=2),
    Case("HISTLoss", "class"),
    Case("StructuredClusteringLoss", "search"),
    *(Case(name) for name in regularizers.__all__ if name != "Regularizer"),
]


def batch(n: int, device: str = "cpu") -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n) // SAMPLES_PER_CLASS
    centers = torch.randn(n // SAMPLES_PER_CLASS, DIM, generator=generator)
    embeddings = centers[labels] + 2 * torch.randn(n, DIM, generator=generator)
    return embeddings.to(device).requires_grad_(), labels.to(device)


def step(loss: Loss, embeddings: Tensor, labels: Tensor) -> float:
    """Seconds of one forward + backward."""
    embeddings.grad = None
    begin = time.perf_counter()
    loss(embeddings, labels).backward()
    return time.perf_counter() - begin


def floor(kind: str, weights: Tensor) -> Loss:
    if kind == "class":
        return lambda embeddings, labels: (embeddings @ weights.T).sum()
    if kind == "both":
        itself = floor("pair", weights)
        return lambda embeddings, labels: itself(torch.cat([embeddings, weights]), labels)
    return lambda embeddings, labels: (embeddings @ embeddings.T).sum()


def measure(steps: list[Callable[[], float]], seconds: float) -> list[float]:
    """The least time of each, taken by turns until the time is spent; one turn of what takes longer."""
    best = [run() for run in steps]  # a first turn also warms up
    begin = time.perf_counter()
    for _ in range(200):
        for k, run in enumerate(steps):
            if best[k] < seconds:
                best[k] = min(best[k], run())
        if time.perf_counter() - begin > seconds:
            break
    return best


def build(case: Case, n: int, most: float = PEER_BYTES) -> tuple[Any, Any]:
    """The loss and the peer's, if there is one that takes at most so many bytes."""
    if case.name in regularizers.__all__:
        regularizer = getattr(regularizers, case.name)()
        return (lambda embeddings, labels: regularizer(embeddings)), None
    arguments = dict(case.arguments)
    if case.kind in ("class", "both"):
        arguments |= {"num_classes": n // SAMPLES_PER_CLASS, "embedding_size": DIM}
    has_peer = case.peer_bytes is not None and case.peer_bytes(n) <= most
    return getattr(losses, case.name)(**arguments), getattr(peers, case.name)(**arguments) if has_peer else None


def peak_bytes(loss: Loss, embeddings: Tensor, labels: Tensor) -> int:
    """The most bytes that the allocator has handed out at once during one forward + backward."""
    embeddings.grad = None
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as traced:
        loss(embeddings, labels).backward()
    events = [e for e in traced.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = itertools.accumulate(e.nbytes() for e in sorted(events, key=lambda e: e.start_ns()))
    return max(held, default=0)


class Launches(TorchDispatchMode):
    """Counts the operators that start work on a GPU: all but views, empty tensors, and what stays on the CPU."""

    FREE = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view", "lift_fresh")
    INDEXING = (torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default, torch.ops.aten.index_put.default)

    def __init__(self, move: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.move = move
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in self.INDEXING:  # torch copies the CPU's indices by itself
            here = [index for index in args[1] if isinstance(index, Tensor) and not index.is_cuda]
            self.count += len(here)
            indices = [self.move(index) if any(index is each for each in here) else index for index in args[1]]
            args = (args[0], indices, *args[2:])
        found = func(*args, **(kwargs or {}))
        there = any(isinstance(each, Tensor) and each.is_cuda for each in tree_leaves((args, kwargs, found)))
        self.count += there and not func.is_view and func._schema.name.removeprefix("aten::") not in self.FREE
        return found


def launches(case: Case, n: int = 32) -> list[int]:
    """The operators of one forward + backward on a GPU that `tests/pretended_gpu.py` pretends: ours, the peer's."""
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    from pretended_gpu import OnGpu, pretended_gpu

    counts = []
    with pretended_gpu() as device:
        for loss in build(case, n):
            if loss is not None:
                embeddings, labels = batch(n, device)
                with Launches(OnGpu) as counted:
                    loss.to(device)(embeddings, labels).backward()
                counts.append(counted.count)
    return counts


def rows(case: Case, sizes: list[int], seconds: float) -> Iterator[tuple[int, list[float], float]]:
    """Of each size: least seconds of the floor, ours and, where it takes no minutes, the peer; buffers."""
    peer_last = 0.0
    for n in sizes:
        if case.kind == "search" and n > 128:
            continue  # the papers' warning: a step is seconds
        embeddings, labels = batch(n)
        ours, peer = build(case, n)
        vectors = n // SAMPLES_PER_CLASS * case.centers
        runs = [floor(case.kind, torch.randn(vectors, DIM, requires_grad=True)), ours]
        if peer is not None and peer_last * 16 <= PEER_SECONDS:
            runs.append(peer)
        least = measure([partial(step, run, embeddings, labels) for run in runs], seconds)
        peer_last = least[2] if len(least) > 2 else peer_last
        values = {"class": n * vectors, "both": (n + vectors) ** 2, "angular": n * (SAMPLES_PER_CLASS - 1) * n}
        yield n, least, peak_bytes(ours, embeddings, labels) / (4 * values.get(case.kind, n * n))


def print_times(cases: list[Case], sizes: list[int], seconds: float) -> None:
    print("| loss | N | ours, ms | peer, ms | peer / ours | floor, ms | ours / floor | buffers |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    gains = []
    for case in cases:
        for n, (bare, ours, *peer), buffers in rows(case, sizes, seconds):
            theirs = f"{peer[0] * 1e3:.2f} | {peer[0] / ours:.1f}" if peer else "- | -"
            cells = f"{ours * 1e3:.2f} | {theirs} | {bare * 1e3:.2f} | {ours / bare:.1f} | {buffers:.1f}"
            print(f"| {case.name.removesuffix('Loss')} | {n} | {cells} |", flush=True)
            if peer and n == 512:
                gains.append(peer[0] / ours)
    if gains:
        middle, mean = median(gains), geometric_mean(gains)
        print(f"\nPeer / ours at 512 over {len(gains)} losses: median {middle:.1f}, geometric mean {mean:.1f}")


def print_launches(cases: list[Case]) -> None:
    print("| loss | ours | peer | ours / peer |\n| --- | ---: | ---: | ---: |")
    for case in cases:
        if case.peer_bytes is not None:
            ours, peer = launches(case)
            print(f"| {case.name.removesuffix('Loss')} | {ours} | {peer} | {ours / peer:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[32, 128, 512, 2048])
    parser.add_argument("--losses", nargs="+", default=[case.name for case in CASES])
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each row")
    parser.add_argument("--launches", action="store_true", help="only how many operators each starts on a GPU")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(2)
    cases = [case for case in CASES if case.name in arguments.losses]
    if arguments.launches:
        print_launches(cases)
    else:
        print_times(cases, arguments.sizes, arguments.seconds)


if __name__ == "__main__":
    main()
