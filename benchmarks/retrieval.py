"""Time and memory of `retrieval_metrics` beside the bare matrix product and pytorch-metric-learning.

    python benchmarks/retrieval.py                   # CUB, Cars and SOP; some minutes on 2 cores
    python benchmarks/retrieval.py --sizes cub cars  # seconds
    python benchmarks/retrieval.py --next-to-peers   # one and two threads

All run in one process, in turns, so that other load hits all alike; the table has the minimum over the repeats. Where
others load the machine, two threads wait for each other: `--threads 1` and the CPU time tell more.
"""

import argparse
import os
import platform
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from levelfield.metrics import retrieval_metrics

SIZES = {
    "cub": (5_924, 128, 100),
    "cars": (8_131, 512, 98),
    "sop": (60_502, 512, 11_316),
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


def peers() -> dict[str, Callable[[Tensor, Tensor], dict[str, float]]]:
    """pytorch-metric-learning's calculator of the same scores, by two engines; it has no recall@k."""
    from pytorch_metric_learning.distances import CosineSimilarity
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
    from pytorch_metric_learning.utils.inference import CustomKNN, FaissKNN

    engines = {"faiss": FaissKNN(), "torch": CustomKNN(CosineSimilarity(), batch_size=1024)}
    how = {"include": PEER_METRICS, "k": "max_bin_count"}
    return {name: AccuracyCalculator(knn_func=each, **how).get_accuracy for name, each in engines.items()}


def measure(run: Callable[[], object]) -> tuple[float, float, float]:
    """Wall-clock seconds, processor seconds of all threads, and the largest growth of the resident memory in MiB."""
    Path("/proc/self/clear_refs").write_text("5")  # begins VmHWM, the peak, again
    before, start, cpu_start = peak_memory(), time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - start, time.process_time() - cpu_start, peak_memory() - before


def peak_memory() -> float:
    """The most resident memory so far, in MiB."""
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024


def next_to_peers(sizes: Sequence[str]) -> None:
    """Milliseconds of MAP@R, R-precision and P@1 by turns, the least of those in 10 seconds each; at least one turn."""
    import faiss

    runs: dict[str, Callable[..., object]] = {"ours": partial(retrieval_metrics, metrics=SHARED_METRICS), **peers()}
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
                    found = measure(partial(run, embeddings, labels))
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
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--next-to-peers", action="store_true", help="only MAP@R, RP and P@1, one and two threads")
    arguments = parser.parse_args()
    if arguments.next_to_peers:
        return next_to_peers(arguments.sizes or NEXT_TO_PEERS)
    torch.set_num_threads(arguments.threads)
    load = f"load average at the start {os.getloadavg()[0]:.1f}"
    print(f"torch {torch.__version__}, {platform.machine()}, {arguments.threads} threads, {load}\n")
    print("| items x dimensions, classes | what | seconds | of the bare product | the same in CPU time | added MiB |")
    print("| --- | --- | ---: | ---: | ---: | ---: |", flush=True)
    for size in arguments.sizes or ("cub", "cars", "sop"):
        embeddings, labels = embedding_space(*SIZES[size])
        runs: dict[str, Callable[..., object]] = {
            "bare product": lambda embeddings, labels: bare_product(embeddings),
            "MAP@R, RP, P@1, R@{1,2,4,8}": partial(retrieval_metrics, metrics=NEIGHBOR_METRICS),
            "all, with MAP and MRR": retrieval_metrics,
            **{f"AccuracyCalculator, {engine}": run for engine, run in peers().items()},
        }
        repeats = 4 if len(labels) < 10_000 else 1  # the first warms up
        found = {name: list[tuple[float, float, float]]() for name in runs}
        for _ in range(repeats):
            for name, run in runs.items():
                found[name].append(measure(partial(run, embeddings, labels)))
        least = {name: [*map(min, zip(*times, strict=True))] for name, times in found.items()}
        bare_seconds, bare_cpu_seconds, _ = least["bare product"]
        for name, (seconds, cpu_seconds, _) in least.items():
            added = max(times[2] for times in found[name])
            ratios = f"{seconds / bare_seconds:.2f} | {cpu_seconds / bare_cpu_seconds:.2f}"
            print(f"| {size_name(size)} | {name} | {seconds:.2f} | {ratios} | {added:.0f} |", flush=True)


if __name__ == "__main__":
    main()
