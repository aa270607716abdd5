"""Scores are the same bytes whichever way they are found: by counting or row by row."""

import pytest
import torch
from test_query_scores import NEIGHBOR_METRICS, embedding_space, expected, scores_in_float64
from tie_order import ranked

from levelfield.losses.hyperbolic_cross_entropy import poincare_distances
from levelfield.metrics import query_scores, retrieval_metrics
from levelfield.metrics.counting import counted_places, counting_block
from levelfield.metrics.distances import DISTANCES, normalize
from levelfield.numerics import in_ball

ALL = (*NEIGHBOR_METRICS, "map", "mrr")
# Half of the matrix of 2,500 items does not fit it, a tile of 704 rows does.
BUDGET = 2**23


def with_ties(num_items=2500):
    """Cosines that are exact in float32, every one of them shared by many items of several classes."""
    generator = torch.Generator().manual_seed(3)
    signs = torch.randn(num_items, 16, generator=generator).sign()
    return signs, torch.randint(0, 300, (num_items,), generator=generator)


def with_near_ties():
    """Every third item is another one moved by a millionth, or not at all, mostly of another class."""
    embeddings, labels = embedding_space(dim=64)
    third = torch.arange(0, 2499, 3)
    moves = torch.randint(0, 3, (len(third), 1), generator=torch.Generator().manual_seed(4)) * 4e-6
    embeddings[third] = embeddings[third + 1] + moves * embeddings[third + 2]
    return embeddings, labels


CASES = {"plain": embedding_space, "ties": with_ties, "near ties": with_near_ties}


def scores(way, monkeypatch, embeddings, labels, **arguments):
    with monkeypatch.context() as patch:
        if way != "counting":
            patch.setattr(query_scores, "counting_block", lambda *_: 0)
        return retrieval_metrics(embeddings, labels, memory_budget=BUDGET, **arguments)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("metrics", [NEIGHBOR_METRICS, ALL])
def test_every_way_gives_the_same_bytes(case, metrics, monkeypatch):
    embeddings, labels = CASES[case]()
    found = {
        way: scores(way, monkeypatch, embeddings, labels, metrics=metrics, per_query=True)
        for way in ("rows", "counting")
    }
    for name, values in found["rows"].items():
        assert values.numpy().tobytes() == found["counting"][name].numpy().tobytes(), name


@pytest.mark.parametrize(
    ("distance", "case"), [("cosine", "ties"), ("euclidean", "plain"), ("hamming", "ties"), ("poincare", "plain")]
)
def test_counting_equals_float64(distance, case, monkeypatch):
    embeddings, labels = CASES[case]()
    exact = embeddings.double()
    similarities = {
        "cosine": lambda: normalize(embeddings).double() @ normalize(embeddings).double().T,
        "euclidean": lambda: 2 * exact @ exact.T - exact.square().sum(1),
        "hamming": lambda: (2.0 * (exact > 0) - 1) @ (2.0 * (exact > 0) - 1).T,
        "poincare": lambda: -poincare_distances(in_ball(exact), in_ball(exact)),
    }[distance]()
    result = scores("counting", monkeypatch, embeddings, labels, metrics=ALL, distance=distance)
    assert result == expected(scores_in_float64(similarities.round(decimals=9), labels), result)


@pytest.mark.parametrize("num_items", [300, 704, 705, 1409])
def test_places_are_those_of_whole_rows(num_items):
    """Blocks that are full, that hold one item, and one that is larger than the set's last."""
    signs, _ = with_ties(num_items)
    labels = torch.randint(0, 60, (num_items,), generator=torch.Generator().manual_seed(num_items))
    unit = normalize(signs)
    places, found = counted_places(unit, labels, DISTANCES["cosine"][1], 288)
    order = ranked((unit @ unit.T).fill_diagonal_(-torch.inf))
    for query in range(num_items):
        of_class = (labels[order[query, :-1]] == labels[query]).nonzero().squeeze(1) + 1
        assert torch.equal(places[query][found[query]], of_class)


def test_it_is_for_many_small_classes_that_fit_the_budget():
    assert counting_block(torch.full((60_000,), 5), 400 * 2**20) == 1024
    assert counting_block(torch.full((60_000,), 80), 400 * 2**20) == 0  # a sort is cheaper
    assert counting_block(torch.full((60_000,), 5), 2**20) == 0
    assert counting_block(torch.full((200,), 5), 400 * 2**20) == 0
