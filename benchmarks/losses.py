"""Forward + backward time and peak memory of every loss and regularizer, beside pytorch-metric-learning and the floor.

The floor is forward + backward of the similarity matrix alone: N x N, or N x C for a loss with class weights, C being
their number (the classes in the batch, by the centres of a class), or of samples and class weights with themselves for
a loss of them all (potential field). 4 samples a class, D = 128, 2 threads. Times are
the least of several runs, ours and theirs by turns. Memory is the peak of traced allocations, in float32 buffers of N
x N (N x C; angular: positive pairs x N).

    python benchmarks/losses.py                          # all sizes, some minutes
    python benchmarks/losses.py --sizes 32 128 --losses NTXentLoss ArcFaceLoss
    python benchmarks/losses.py --sizes 128 2048 --compiled  # ours as it is beside ours compiled, as "peer"
    python benchmarks/losses.py --sizes 512 2048 --deterministic  # beside ours under determinism, as "peer"
    python benchmarks/losses.py --launches  # the operators that start on a GPU, ours and the peer's; needs tests/
"""

from __future__ import annotations

import argparse
import gc
import itertools
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import torch
from pytorch_metric_learning import losses as peers
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from levelfield import losses, regularizers
from levelfield.losses.pairs import pair_weights

DIM = 128
SAMPLES_PER_CLASS = 4
PEER_BYTES = 12 * 2**30
PEER_SECONDS = 60.0
Clock = Callable[[], float]


@dataclass
class Case:
    """A loss, its peer, and the memory that the peer takes at batch size N, roughly, in bytes."""

    name: str
    kind: str  # "pair", "sorted", "angular", "class" or "both"
    arguments: dict
    peer_bytes: Callable[[int], float] | None = None
    centers: int = 1  # weight vectors a class


def dense(n: int) -> float:
    return 60.0 * n * n


def pairs_by_pairs(n: int) -> float:
    return 3 * n * n * n * 20.0


def triplets(n: int) -> float:
    return 3 * n * n * 60.0 + n**3


CASES = [
    Case("ContrastiveLoss", "pair", {}, dense),
    Case("TripletMarginLoss", "sorted", {}, triplets),
    Case("NTXentLoss", "pair", {}, pairs_by_pairs),
    Case("NPairsLoss", "pair", {}, dense),
    Case("LiftedStructureLoss", "pair", {}, pairs_by_pairs),
    Case("AngularLoss", "angular", {}, lambda n: 3 * n * n * 40.0),
    Case("MarginLoss", "pair", {}, triplets),
    Case("MultiSimilarityLoss", "pair", {}, dense),
    Case("SignalToNoiseRatioContrastiveLoss", "pair", {}, lambda n: 24.0 * n * n * DIM),
    Case("FastAPLoss", "pair", {}, lambda n: 40.0 * n * n * 11),
    Case("TupletMarginLoss", "pair", {}, pairs_by_pairs),
    Case("CircleLoss", "pair", {}, dense),
    Case("SoftNearestNeighborLoss", "pair", {}),
    Case("DecoupledContrastiveLoss", "pair", {}),
    Case("SupConLoss", "pair", {}, dense),
    Case("CentroidTripletLoss", "pair", {}),
    Case("PrototypicalLoss", "pair", {}),
    Case("SmoothAPLoss", "pair", {}, pairs_by_pairs),
    Case("PNPLoss", "pair", {"variant": "Dq"}, pairs_by_pairs),
    Case("ROADMAPLoss", "pair", {}),
    Case("RecallAtKLoss", "pair", {}),
    Case("SigmoidPairLoss", "pair", {}),
    Case("HyperbolicCrossEntropyLoss", "pair", {}),
    Case("ContextualLoss", "pair", {}),
    Case("RankedListLoss", "pair", {"margin": 0.4, "Tn": 5}, dense),
    Case("NormalizedSoftmaxLoss", "class", {}, dense),
    Case("ProxyNCALoss", "class", {}, dense),
    Case("ProxyTripletLoss", "class", {}),
    Case("ProxyAnchorLoss", "class", {}, dense),
    Case("CosFaceLoss", "class", {}, dense),
    Case("ArcFaceLoss", "class", {}, dense),
    Case("SphereFaceLoss", "class", {}, dense),
    Case("AdaFaceLoss", "class", {}),
    Case("MagFaceLoss", "class", {}),
    Case("SubCenterArcFaceLoss", "class", {}, dense, centers=3),
    Case("SoftTripleLoss", "class", {}, dense, centers=10),
    Case("PotentialFieldLoss", "both", {}, centers=2),
    Case("HISTLoss", "class", {}),
    Case("StructuredClusteringLoss", "search", {}),
    Case("KoLeo", "pair", {}),
    Case("Uniformity", "pair", {}),
    Case("AntiCollapse", "pair", {}),
    Case("ZeroMean", "pair", {}),
    Case("SphericalConstraint", "pair", {}),
    Case("CenterInvariance", "pair", {}),
]


def batch(n: int, device: str = "cpu") -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n) // SAMPLES_PER_CLASS
    centers = torch.randn(n // SAMPLES_PER_CLASS, DIM, generator=generator)
    embeddings = centers[labels] + 2 * torch.randn(n, DIM, generator=generator)
    return embeddings.to(device).requires_grad_(), labels.to(device)


def step(clock: Clock, loss: Callable[[Tensor, Tensor], Tensor], embeddings: Tensor, labels: Tensor) -> float:
    """Seconds of one forward + backward."""
    embeddings.grad = None
    begin = clock()
    loss(embeddings, labels).backward()
    return clock() - begin


def synchronized() -> float:
    """Seconds, once the GPU has finished."""
    torch.cuda.synchronize()
    return time.perf_counter()


def floor(kind: str, weights: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
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


class Penalty(nn.Module):
    """A regularizer, called as a loss is."""

    def __init__(self, regularizer: nn.Module) -> None:
        super().__init__()
        self.regularizer = regularizer

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return self.regularizer(embeddings)


def build(case: Case, n: int) -> tuple[nn.Module, nn.Module | None]:
    if case.name in regularizers.__all__:
        return Penalty(getattr(regularizers, case.name)(**case.arguments)), None
    classes = {"num_classes": n // SAMPLES_PER_CLASS, "embedding_size": DIM} if case.kind in ("class", "both") else {}
    ours = getattr(losses, case.name)(**classes, **case.arguments)
    if case.peer_bytes is None or case.peer_bytes(n) > PEER_BYTES:
        return ours, None
    return ours, getattr(peers, case.name)(**classes, **case.arguments)


def peak_bytes(loss: nn.Module, embeddings: Tensor, labels: Tensor) -> int:
    """The most bytes that the allocator has handed out at once during one forward + backward."""
    embeddings.grad = None
    gc.collect()
    if embeddings.is_cuda:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        loss(embeddings, labels).backward()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as traced:
        loss(embeddings, labels).backward()
    events = [e for e in traced.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = itertools.accumulate(e.nbytes() for e in sorted(events, key=lambda e: e.start_ns()))
    return max(held, default=0)


def deterministic(run: Callable[[], float]) -> float:
    """A step under determinism, as `levelfield fit` sets it."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        return run()
    finally:
        torch.use_deterministic_algorithms(False)


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


def rows(case: Case, sizes: list[int], seconds: float, clock: Clock, beside: str, device: str) -> list[str]:
    out = []
    peer_last = 0.0
    for n in sizes:
        if case.kind == "search" and n > 128:
            continue  # the papers' warning: a step is seconds
        embeddings, labels = batch(n, device)
        ours, peer = (each and each.to(device) for each in build(case, n))
        if peer is not None and peer_last * 16 > PEER_SECONDS:
            peer = None
        vectors = n // SAMPLES_PER_CLASS * case.centers
        weights = torch.randn(vectors, DIM, device=device, requires_grad=True)
        if beside == "compiled":  # its graphs are of these sizes
            torch.compiler.reset()
            peer = torch.compile(ours, dynamic=False)
            step(clock, peer, embeddings, labels)
        runs = [floor(case.kind, weights), ours] + ([peer] if peer is not None and beside != "deterministic" else [])
        steps = [partial(step, clock, run, embeddings, labels) for run in runs]
        if beside == "deterministic":
            steps.append(partial(deterministic, steps[1]))
        least = measure(steps, seconds)
        peer_last = least[2] if peer is not None else peer_last
        values = {"class": n * vectors, "both": (n + vectors) ** 2, "angular": n * (SAMPLES_PER_CLASS - 1) * n}
        unit = 4 * values.get(case.kind, n * n)
        buffers = peak_bytes(ours, embeddings, labels) / unit
        theirs = f"{least[2] * 1e3:.2f} | {least[2] / least[1]:.1f}" if len(least) > 2 else "- | -"
        out.append(
            f"| {case.name.removesuffix('Loss')} | {n} | {least[1] * 1e3:.2f} | {theirs} | {least[0] * 1e3:.2f} "
            f"| {least[1] / least[0]:.1f} | {buffers:.1f} |"
        )
    return out


def masks(n: int, seconds: float) -> None:
    """What a mask of pairs costs as float32, which counts a miner's repeats too, and as bool: made, and laid over."""
    _, labels = batch(n)
    matrix, filled = torch.randn(n, n), torch.empty(n, n)

    def as_bool() -> tuple[Tensor, Tensor]:
        positives = labels[:, None] == labels[None, :]
        negatives = ~positives
        return positives.fill_diagonal_(False), negatives

    pairs = pair_weights(labels, None, None, torch.float32), as_bool()
    runs = {
        "both made, float32": lambda: pair_weights(labels, None, None, torch.float32),
        "both made, bool": as_bool,
        "a product, float32": lambda: torch.mul(matrix, pairs[0][1], out=filled),
        "a product, bool": lambda: torch.mul(matrix, pairs[1][1], out=filled),
        "`torch.where`, bool": lambda: torch.where(pairs[1][1], matrix, 0.0),
    }

    def timed(run: Callable[[], Any]) -> float:
        begin = time.process_time()
        run()
        return time.process_time() - begin

    print(f"| masks of {n:,} x {n:,} | CPU ms |\n| --- | ---: |")
    for name, least in zip(runs, measure([partial(timed, run) for run in runs.values()], seconds), strict=True):
        print(f"| {name} | {least * 1e3:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[32, 128, 512, 2048])
    parser.add_argument("--losses", nargs="+", default=[case.name for case in CASES])
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each row")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--busy", action="store_true", help="one thread and its CPU time, where others work too")
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--compiled", action="store_const", const="compiled", dest="beside", default="peer",
                       help="torch.compile's in the peer's place")  # fmt: skip
    other.add_argument("--deterministic", action="store_const", const="deterministic", dest="beside",
                       help="ours under determinism in the peer's place")  # fmt: skip
    other.add_argument("--launches", action="store_true", help="only how many operators each starts on a GPU")
    other.add_argument("--masks", type=int, help="only the masks of so many embeddings, as float32 and as bool")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1 if arguments.busy else 2)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined] # as in a fit
    cases = [case for case in CASES if case.name in arguments.losses]
    if arguments.masks:
        masks(arguments.masks, arguments.seconds)
        return
    if arguments.launches:
        print("| loss | ours | peer | ours / peer |\n| --- | ---: | ---: | ---: |")
        for case in (case for case in cases if case.peer_bytes is not None):
            ours, peer = launches(case)
            print(f"| {case.name.removesuffix('Loss')} | {ours} | {peer} | {ours / peer:.2f} |", flush=True)
        return
    clock = time.process_time if arguments.busy else time.perf_counter
    if arguments.device == "cuda":
        clock = synchronized
    name = arguments.beside
    print(f"| loss | N | ours, ms | {name}, ms | {name} / ours | floor, ms | ours / floor | buffers |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    gains = []
    for case in cases:
        for row in rows(case, arguments.sizes, arguments.seconds, clock, name, arguments.device):
            print(row, flush=True)
            cells = [cell.strip() for cell in row.split("|")]
            if cells[2] == "512" and cells[5] != "-":
                gains.append(float(cells[5]))
    if gains:
        middle, mean = median(gains), geometric_mean(gains)
        label = name.capitalize()
        print(f"\n{label} / ours at 512 over {len(gains)} losses: median {middle:.1f}, geometric mean {mean:.1f}")


if __name__ == "__main__":
    main()
