"""Time and memory of `retrieval_metrics` beside the bare matrix product and pytorch-metric-learning.

    python benchmarks/retrieval.py                   # CUB, Cars, SOP and 200,000 items; some minutes on 2 cores
    python benchmarks/retrieval.py --sizes cub cars  # seconds
    python benchmarks/retrieval.py --sizes n8k n16k n32k n64k --no-peers  # how the time grows with N
    python benchmarks/retrieval.py --sizes sop million --device cuda
    python benchmarks/retrieval.py --next-to-peers [--before CHECKOUT]  # one and two threads; another checkout in turn

open-metric-learning joins in where it is installed (an environment of its own: it pins old versions). Everything runs
in one process, in turns, so that other load on the machine hits all alike; the table has the minimum
over the repeats. On a machine that others load, two threads wait for each other: `--threads 1` and the CPU time tell
more there.
"""

import argparse
import importlib
import os
import platform
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from levelfield.metrics import retrieval_metrics

SIZES = {
    "cub": (5_924, 128, 100),
    "cars": (8_131, 512, 98),
    "sop": (60_502, 512, 11_316),
    "large": (200_000, 128, 40_000),
    "large512": (200_000, 512, 40_000),
    "n8k": (8_000, 128, 1_600),
    "n16k": (16_000, 128, 3_200),
    "n32k": (32_000, 128, 6_400),
    "n64k": (64_000, 128, 12_800),
    "million": (1_000_000, 128, 200_000),
    "n1k": (1_000, 128, 50),
    "n15k": (15_000, 512, 1_000),
    "n30k": (30_000, 128, 2_000),
}
NEXT_TO_PEERS = ("n1k", "cub", "cars", "n15k", "n30k", "sop")
NEIGHBOR_METRICS = ("map_at_r", "r_precision", "precision_at_1", "recall")
SHARED_METRICS = ("map_at_r", "r_precision", "precision_at_1")
PEER_METRICS = ("mean_average_precision_at_r", "r_precision", "precision_at_1")


def embedding_space(num_items: int, dim: int, num_classes: int) -> tuple[Tensor, Tensor]:
    """Gaussian classes of unequal sizes about as hard as a trained trunk's unseen classes."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(num_classes, dim, generator=generator)
    shares = 0.6 + 0.8 * torch.rand(num_classes, generator=generator)
    labels = torch.multinomial(shares, num_items, replacement=True, generator=generator)
    labels[: 2 * num_classes] = torch.arange(num_classes).repeat(2)[:num_items]
    noise = torch.randn(num_items, dim, generator=generator)
    return torch.nn.functional.normalize(0.45 * centres[labels] + noise, dim=1), labels


def bare_product(embeddings: Tensor, chunk: int = 1024) -> None:
    """The whole similarity matrix in float32, a chunk at a time into one buffer, nothing done with it."""
    out = embeddings.new_empty(chunk, len(embeddings))
    for rows in embeddings.split(chunk):
        torch.mm(rows, embeddings.T, out=out[: len(rows)])


def peer(knn_func: object) -> Callable[[Tensor, Tensor], dict[str, float]]:
    """pytorch-metric-learning's calculator of the same scores; it has no recall@k."""
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    calculator = AccuracyCalculator(include=PEER_METRICS, k="max_bin_count", knn_func=knn_func)
    return lambda embeddings, labels: calculator.get_accuracy(embeddings, labels)


def peers() -> dict[str, Callable[[Tensor, Tensor], dict[str, float]]]:
    from pytorch_metric_learning.distances import CosineSimilarity
    from pytorch_metric_learning.utils.inference import CustomKNN, FaissKNN

    return {"faiss": peer(FaissKNN()), "torch": peer(CustomKNN(CosineSimilarity(), batch_size=1024))}


def open_metric_learning(embeddings: Tensor, labels: Tensor) -> dict[str, object]:
    """Its nearest neighbours, as many as the largest class has, and from them CMC, precision and MAP."""
    from oml.functional.knn import batched_knn
    from oml.functional.metrics import calc_retrieval_metrics

    ids = torch.arange(len(labels))
    largest = int(labels.bincount().max())
    _, retrieved, relevant = batched_knn(
        embeddings=embeddings, ids_query=ids, ids_gallery=ids, labels_gt=labels, top_n=largest
    )
    return calc_retrieval_metrics(
        retrieved, relevant, cmc_top_k=(1, 2, 4, 8), precision_top_k=(1,), map_top_k=(largest,), verbose=False
    )


def contenders(embeddings: Tensor, labels: Tensor, with_peers: bool) -> dict[str, Callable[[], object]]:
    runs: dict[str, Callable[[], object]] = {
        "bare product": lambda: bare_product(embeddings),
        "MAP@R, RP, P@1, R@{1,2,4,8}": lambda: retrieval_metrics(embeddings, labels, metrics=NEIGHBOR_METRICS),
        "all, with MAP and MRR": lambda: retrieval_metrics(embeddings, labels),
    }
    if with_peers:
        for engine, calculate in peers().items():
            runs[f"AccuracyCalculator, {engine}"] = partial(calculate, embeddings, labels)
        if find_spec("oml") is not None:
            runs["open-metric-learning"] = lambda: open_metric_learning(embeddings, labels)
    return runs


class PeakMemory:
    """Largest growth of the resident memory while the block runs, in MiB (on a GPU, of its allocations)."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.added = device, 0.0

    def resident(self) -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    def watch(self) -> None:
        while not self.done.wait(0.01):
            self.peak = max(self.peak, self.resident())

    def __enter__(self) -> "PeakMemory":
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
            self.before = torch.cuda.memory_allocated()
            return self
        self.before = self.peak = self.resident()
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.device.type == "cuda":
            self.added = (torch.cuda.max_memory_allocated() - self.before) / 2**20
            return
        self.done.set()
        self.thread.join()
        self.added = (self.peak - self.before) / 2**20


def measure(run: Callable[[], object], device: torch.device) -> tuple[float, float, float]:
    """Wall-clock seconds, processor seconds of all threads, MiB."""
    with PeakMemory(device) as memory:
        start, cpu_start = time.perf_counter(), time.process_time()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    return seconds, cpu_seconds, memory.added


def retrieval_metrics_of(checkout: Path) -> Callable[..., dict[str, float]]:
    """The function of another checkout, in this process."""

    def modules() -> list[str]:
        return [name for name in sys.modules if name.partition(".")[0] == "levelfield"]

    here = {name: sys.modules.pop(name) for name in modules()}
    sys.path.insert(0, str(checkout / "src"))
    found = importlib.import_module("levelfield.metrics.retrieval").retrieval_metrics
    sys.path.pop(0)
    for name in modules():
        del sys.modules[name]
    sys.modules.update(here)
    return found


def next_to_peers(sizes: Sequence[str], before: Path | None) -> None:
    """Milliseconds of MAP@R, R-precision and P@1 by turns, the least of those in 10 seconds each; at least one turn."""
    import faiss

    ways = {"before": retrieval_metrics_of(before)} if before else {}
    ways["ours"] = retrieval_metrics
    runs: dict[str, Callable[..., object]] = {name: partial(way, metrics=SHARED_METRICS) for name, way in ways.items()}
    runs |= peers()
    header = ["items x dimensions, classes", "threads", *runs, "fastest peer / ours", "the same in CPU time"]
    print(f"| {' | '.join(header)} |\n| --- |" + " ---: |" * (len(header) - 1))
    for size in sizes:
        embeddings, labels = embedding_space(*SIZES[size])
        for threads in (1, 2):
            torch.set_num_threads(threads)
            faiss.omp_set_num_threads(threads)
            best = dict.fromkeys(runs, (float("inf"), float("inf")))
            start = time.perf_counter()
            while best["ours"][0] == float("inf") or time.perf_counter() - start < 10 * len(runs):
                for name, run in runs.items():
                    found = measure(partial(run, embeddings, labels), embeddings.device)
                    best[name] = min(best[name][0], found[0]), min(best[name][1], found[1])
            cells = [size_name(size), str(threads), *(f"{1000 * seconds:,.1f}" for seconds, _ in best.values())]
            cells += [f"{min(best['faiss'][i], best['torch'][i]) / best['ours'][i]:.2f}" for i in (0, 1)]
            print(f"| {' | '.join(cells)} |", flush=True)


def size_name(size: str) -> str:
    num_items, dim, num_classes = SIZES[size]
    return f"{num_items:,} x {dim}, {num_classes:,}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=SIZES)
    parser.add_argument("--repeats", type=int, default=3, help="of cub and cars; the others run once")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--next-to-peers", action="store_true", help="only MAP@R, RP and P@1, one and two threads")
    parser.add_argument("--before", type=Path, help="another checkout, which takes turns with the peers")
    arguments = parser.parse_args()
    if arguments.next_to_peers:
        return next_to_peers(arguments.sizes or NEXT_TO_PEERS, arguments.before)
    torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)

    where = torch.cuda.get_device_name() if device.type == "cuda" else f"{arguments.threads} threads"
    header = [
        f"torch {torch.__version__}, {platform.machine()}, {where}, load average at the start {os.getloadavg()[0]:.1f}",
        "",
        "| items x dimensions, classes | what | seconds | of the bare product | the same in CPU time | added MiB |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    print("\n".join(header), flush=True)
    times: dict[str, list[tuple[int, float]]] = defaultdict(list)
    sizes = arguments.sizes or ["cub", "cars", "sop", "large"]
    for size in sizes:
        num_items, dim, _ = SIZES[size]
        embeddings, labels = (tensor.to(device) for tensor in embedding_space(*SIZES[size]))
        # The peers need minutes and gigabytes beyond SOP's size.
        runs = contenders(embeddings, labels, with_peers=not arguments.no_peers and num_items < 100_000)
        small = num_items < 10_000 or device.type == "cuda"
        if small:
            for run in runs.values():
                run()
        best: dict[str, tuple[float, float, float]] = {}
        for _ in range(arguments.repeats if small else 1):
            for name, run in runs.items():
                seconds, cpu_seconds, added = measure(run, device)
                before = best.get(name, (float("inf"), float("inf"), 0.0))
                best[name] = (min(before[0], seconds), min(before[1], cpu_seconds), max(before[2], added))
        bare_seconds, bare_cpu_seconds, _ = best["bare product"]
        for name, (seconds, cpu_seconds, added) in best.items():
            row = (
                f"| {size_name(size)} | {name} | {seconds:.2f} | {seconds / bare_seconds:.2f} "
                f"| {cpu_seconds / bare_cpu_seconds:.2f} | {added:.0f} |"
            )
            print(row, flush=True)
            times[name].append((num_items, seconds))
    for name, points in times.items():
        if len(points) > 2 and all(SIZES[size][1] == dim for size in sizes):
            items, seconds_of = (np.log([point[axis] for point in points]) for axis in (0, 1))
            print(f"{name}: time grows as N to the power of {np.polyfit(items, seconds_of, 1)[0]:.2f}")


if __name__ == "__main__":
    main()
