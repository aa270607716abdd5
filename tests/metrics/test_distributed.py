"""The same numbers on one process and on several, whatever the sampler pads."""

import os
import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from levelfield.metrics import RetrievalMetrics, retrieval_metrics

METRICS = ("map_at_r", "r_precision", "precision_at_1", "recall", "map", "mrr")


def validation_set(size):
    embeddings = torch.randn(size, 8, generator=torch.Generator().manual_seed(size))
    embeddings[5] = embeddings[3]
    labels = torch.arange(size) % 10
    labels[0] = 99
    return embeddings, labels


def score_share(rank, num_processes, size, port, results):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=num_processes)
    embeddings, labels = validation_set(size)
    metric = RetrievalMetrics(METRICS, num_samples=size)
    # As torch's DistributedSampler deals them: round robin, padded with repeats from the front.
    share = [i % size for i in range(rank, -(-size // num_processes) * num_processes, num_processes)]
    for start in range(0, len(share), 7):
        batch = torch.tensor(share[start : start + 7])
        metric.update(embeddings[batch], labels[batch], batch)
    results[rank] = metric.compute()
    metric.reset()
    # A process may see no batch at all.
    if rank == 0:
        metric.update(embeddings, labels, torch.arange(size))
    results[rank + num_processes] = metric.compute()
    wrong = RetrievalMetrics(METRICS, num_samples=size + 1)
    wrong.update(embeddings, labels, torch.arange(size))
    try:
        wrong.compute()
    except ValueError as error:
        results[rank + 2 * num_processes] = str(error)
    dist.destroy_process_group()


@pytest.mark.processes
@pytest.mark.parametrize(("num_processes", "size"), [(2, 101), (3, 100)])
def test_equal_on_every_number_of_processes(num_processes, size):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with mp.Manager() as manager:
        results = manager.dict()
        mp.spawn(score_share, (num_processes, size, port, results), nprocs=num_processes)
        results = dict(results)
    expected = retrieval_metrics(*validation_set(size), metrics=METRICS)
    for rank in range(num_processes):
        assert results[rank] == pytest.approx(expected, abs=1e-6)
        assert results[rank] == results[0]
        assert results[num_processes + rank] == results[0]
        assert results[2 * num_processes + rank].startswith(f"{size} different samples were scored, {size + 1} were")


def test_repeats_of_an_index_count_once():
    embeddings, labels = validation_set(60)
    metric = RetrievalMetrics(METRICS)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    for batch in (order[:25], order[20:], order[:3]):
        metric.update(embeddings[batch], labels[batch], batch)
    assert metric.compute() == pytest.approx(retrieval_metrics(embeddings, labels, metrics=METRICS), abs=1e-9)


def test_bfloat16_embeddings_are_kept_in_float32():
    embeddings, labels = validation_set(60)
    metric = RetrievalMetrics(METRICS)
    metric.update(embeddings.bfloat16(), labels.int(), torch.arange(60))
    assert metric.embeddings[0].dtype == torch.float32
    assert metric.compute() == retrieval_metrics(embeddings.bfloat16(), labels, metrics=METRICS)


def test_mistakes_raise():
    metric = RetrievalMetrics()
    with pytest.raises(ValueError, match="index must hold 4 integers"):
        metric.update(torch.rand(4, 2), torch.arange(4), torch.arange(3))
    with pytest.raises(ValueError, match="no such metric"):
        RetrievalMetrics(("map@r",))
    metric.update(torch.eye(3), torch.arange(3), torch.arange(3))
    with pytest.raises(ValueError, match="none of the 3 samples shares its label"):
        metric.compute()
