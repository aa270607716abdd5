"""The same numbers on one process and on several, whatever the sampler pads; as a script, the ranks of this test."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from forked import fork, run_script
from pretended_gpu import any_device
from torch.nn.functional import normalize

from levelfield.metrics import RetrievalMetrics, retrieval_metrics, verification_metrics
from levelfield.metrics.distances import DISTANCES

device = any_device
METRICS = ("map_at_r", "r_precision", "precision_at_1", "recall", "map", "mrr")


def validation_set(size):
    embeddings = torch.randn(size, 8, generator=torch.Generator().manual_seed(size))
    labels = torch.arange(size) % 10
    labels[0] = 99
    embeddings[5], labels[5] = embeddings[3], labels[3]  # of one label: which of them is nearer is up to the processor
    return embeddings, labels


def label_sets(labels):
    """Its own label modulo 10, and for every fourth sample another one."""
    sets = torch.eye(10, dtype=torch.bool)[labels % 10]
    return sets | (sets.roll(3, 1) & (torch.arange(len(labels)) % 4 == 0)[:, None])


def queries_of(size):
    return (torch.arange(size) % 3 == 0).numpy()


# Distance, and whether some are queries alone.
CASES = (("cosine", False), ("cosine", True), ("euclidean", False), ("hamming", False), ("hamming", True))


OWN = """
def first_minus_last(embeddings, labels):
    return (embeddings[0] - embeddings[-1]).sum() + 0.1 * embeddings.shape[0] + labels[7]
"""


def metric_of(distance, asks, size, **processes):
    return RetrievalMetrics(METRICS, size, distance, queries_of(size) if asks else None, **processes)


def filled(metric, sets, mine):
    for batch in mine.split(40) if len(mine) else ():
        metric.update(*(part[batch.to(part.device)] for part in sets), batch)
    return metric


def score_share(rank, folder):
    os.chdir(folder)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=3)
    pair, results = dist.new_group([0, 1]), {}
    for processes, size, group in ((2, 101, pair), (3, 100, None))[rank // 2 :]:
        sets, everything = validation_set(size), torch.arange(size)
        # As torch's DistributedSampler deals them: round robin, padded with repeats from the front.
        dealt = torch.arange(rank, -(-size // processes) * processes, processes) % size
        # Nothing, three, and all but two of the samples, one of them twice; the first of three processes has none.
        uneven = torch.arange(*((0, 0), (0, 3), (2, size))[rank - processes])
        shares = (dealt, everything if rank == 0 else everything[:0], uneven[torch.randperm(len(uneven))])
        found = results[processes] = {}
        for case in CASES:
            metrics = [filled(metric_of(*case, size, process_group=group), sets, mine) for mine in shares]
            found[str(case)] = [metric.compute() for metric in metrics]
            found[f"queries of {case}"] = [metrics[0].query_labels.tolist(), metrics[0].query_scores["mrr"].tolist()]
        names = ("order_metric.first_minus_last", "map_at_r")
        metric = RetrievalMetrics(METRICS, size, num_labels=10, process_group=group)
        found["sets"] = filled(metric, (sets[0], label_sets(sets[1])), shares[2]).compute()
        found["own"] = filled(RetrievalMetrics(names, size, process_group=group), sets, dealt).compute()
        try:
            filled(RetrievalMetrics(METRICS, size + 1, process_group=group), sets, everything).compute()
        except ValueError as error:
            found["error"] = str(error)
    (folder / f"{rank}.json").write_text(json.dumps(results))
    dist.destroy_process_group()


@pytest.mark.processes
def test_equal_on_one_two_and_three_processes(tmp_path):
    (tmp_path / "order_metric.py").write_text(OWN)
    run_script(Path(__file__), str(tmp_path))
    results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    for processes, size in ((2, 101), (3, 100)):
        embeddings, labels = sets = validation_set(size)
        alone = {case: filled(metric_of(*case, size), sets, torch.arange(size)).compute() for case in CASES}
        mrr, unit = retrieval_metrics(*sets, per_query=True)["mrr"], normalize(embeddings)
        by_order = float((unit[0] - unit[-1]).sum() + 0.1 * size + labels[7])
        for found in (each[str(processes)] for each in results[:processes]):
            assert all(found[str(case)] == [scores] * 3 for case, scores in alone.items())
            assert found[f"queries of {CASES[0]}"] == [each[mrr.isfinite()].tolist() for each in (labels, mrr)]
            assert found["own"]["order_metric.first_minus_last"] == pytest.approx(by_order, abs=1e-5)
            by_sets = retrieval_metrics(embeddings, label_sets(labels), metrics=METRICS)
            assert found["sets"] == pytest.approx(by_sets, abs=1e-12)
            assert found["own"] == results[0][str(processes)]["own"]
            assert found["error"].startswith(f"{size} different samples were scored, {size + 1} were expected")


@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("distance", DISTANCES)
def test_batches_add_up_to_the_whole(distance, asks, device):
    embeddings, labels = validation_set(200)
    there = embeddings.to(device), labels.to(device)
    metric = filled(metric_of(distance, asks, 200).to(device), there, torch.arange(200))
    is_query = torch.from_numpy(queries_of(200))
    apart = [part[which] for which in (is_query, ~is_query) for part in (embeddings, labels)]
    whole = retrieval_metrics(*(apart if asks else (embeddings, labels)), metrics=METRICS, distance=distance)
    assert metric.compute() == pytest.approx(whole, abs=1e-6)


@pytest.mark.parametrize(
    ("dtype", "distance"),
    [("bfloat16", "cosine"), ("float16", "euclidean"), ("float64", "poincare"), ("bfloat16", "poincare")],
)
def test_a_trainers_true_precision_changes_no_score(dtype, distance):
    """Lightning sets torch's default type in `validation_step`."""
    embeddings = torch.randn(100, 16, generator=torch.Generator().manual_seed(0))
    labels, index = torch.arange(100) // 5, torch.arange(100)

    def scored():
        metric = filled(RetrievalMetrics(("map_at_r", "map"), distance=distance), (embeddings, labels), index)
        few = retrieval_metrics(embeddings, labels, num_queries=40, distance=distance, memory_budget=40_000)
        return metric.compute(), few, verification_metrics(embeddings, labels).scores

    expected = scored()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        assert scored() == expected
    finally:
        torch.set_default_dtype(torch.float32)


if __name__ == "__main__":
    torch.set_num_threads(1)
    fork(3, lambda rank: score_share(rank, Path(sys.argv[1])))
