"""Embeddings that tell nothing score what chance gives, in whatever order the labels come."""

import pytest
import torch

from levelfield.metrics import RetrievalMetrics, retrieval_metrics
from levelfield.metrics.ranking import tie_positions

METRICS = ("map_at_r", "precision_at_1", "r_precision")
CLASSES = {
    "even": [10] * 50,
    "uneven": [2 + number**2 // 8 for number in range(20)],
    "few": [300, 200, 100],
    "many": [6] * 150,
}


def chance(sizes):
    """Expected scores over all orders of a query's M others, R of which are of its class.

    E[P@1] = E[R-precision] = R / M
    E[MAP@R] = 1/R sum over k <= R of 1/k R/M (1 + (k - 1) (R - 1) / (M - 1))
    """
    others = sum(sizes) - 1
    precision = sum(size * (size - 1) / others for size in sizes) / sum(sizes)
    average = 0.0
    for size in sizes:
        r = size - 1
        terms = (r / others * (1 + (k - 1) * (r - 1) / (others - 1)) / k for k in range(1, r + 1))
        average += size / sum(sizes) * sum(terms) / r
    return {"map_at_r": average, "precision_at_1": precision, "r_precision": precision}


def orders(sizes, count=20):
    """Sorted, dealt in turn, and shuffled."""
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    within = torch.cat([torch.arange(size) for size in sizes])
    generator = torch.Generator().manual_seed(0)
    shuffles = [labels[torch.randperm(len(labels), generator=generator)] for _ in range(count)]
    return {"sorted": labels, "backwards": labels.flip(0), "dealt": labels[within.argsort(stable=True)]}, shuffles


def constant(size):
    return torch.ones(size, 8)


def three_rows(size):
    """Each item is one of three, drawn without a look at its label."""
    drawn = torch.randint(0, 3, (size,), generator=torch.Generator().manual_seed(1))
    return torch.randn(3, 8, generator=torch.Generator().manual_seed(2))[drawn]


def two_bits(size):
    return torch.randn(size, 2, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(
    ("classes", "made", "distance"),
    [
        *((classes, constant, "cosine") for classes in CLASSES),
        ("uneven", constant, "euclidean"),
        *((classes, three_rows, "cosine") for classes in ("uneven", "many")),
        *((classes, two_bits, "hamming") for classes in ("few", "many")),
    ],
)
def test_embeddings_that_tell_nothing_score_chance(classes, made, distance):
    sizes = CLASSES[classes]
    embeddings = made(sum(sizes))
    arranged, shuffles = orders(sizes)

    def scores(labels):
        found = retrieval_metrics(embeddings, labels, metrics=METRICS, distance=distance)
        return torch.tensor([found[name] for name in METRICS])

    by_shuffle = torch.stack([scores(labels) for labels in shuffles])
    expected = torch.tensor([chance(sizes)[name] for name in METRICS])
    spread = by_shuffle.std(dim=0)
    # As of queries that each have an order of their own.
    assert (spread < 1.5 * (expected / sum(sizes)) ** 0.5).all()
    assert ((by_shuffle.mean(dim=0) - expected).abs() < 4 * spread / len(shuffles) ** 0.5).all()
    for order, labels in arranged.items():
        assert ((scores(labels) - expected).abs() < 4 * spread).all(), order


def test_places_are_those_that_the_hash_has_published():
    """MurmurHash3's hashes of nothing with the seeds 0 and 1, and the places of 2^16 items, which all differ."""
    places, _ = tie_positions(0, 2**16, True, torch.device("cpu"))
    assert places[:2].tolist() == [0, 0x514E28B7]
    assert len(places.unique()) == len(places)
    assert 0 <= int(places.min()) < int(places.max()) < 2**32


def test_the_metric_ranks_equal_similarities_by_the_order_of_the_data_set():
    """Whichever numbers the samples have, and in whichever order the batches bring them."""
    embeddings, labels = two_bits(300), torch.arange(300) // 6
    metric = RetrievalMetrics(METRICS, num_samples=300, distance="hamming")
    for batch in torch.randperm(300, generator=torch.Generator().manual_seed(5)).split(70):
        metric.update(embeddings[batch], labels[batch], 10 * batch + 4)
    found = retrieval_metrics(embeddings, labels, metrics=METRICS, distance="hamming")
    assert metric.compute() == pytest.approx(found, abs=1e-12)
