"""Scores are the same bytes by counting or row by row; the nearest by each distance, as a loop finds them, in order."""

import pytest
import torch
from test_query_scores import NEIGHBOR_METRICS, embedding_space, expected, scores_in_float64
from tie_order import place_on_circle

from levelfield.core.numerics import in_ball
from levelfield.losses.hyperbolic_cross_entropy import poincare_distances
from levelfield.metrics import query_scores, retrieval_metrics
from levelfield.metrics.distances import DISTANCES, normalize
from levelfield.metrics.nearest import nearest

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
        patch.setattr(query_scores, "max_mean_counted", lambda *_: 12 if way == "counting" else 0)
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


@pytest.mark.parametrize("distance", DISTANCES)
def test_some_of_the_items_ask_for_the_others(distance: str) -> None:
    prepare, similarity = DISTANCES[distance]
    points = torch.randn(70, 5, generator=torch.Generator().manual_seed(0))
    points[60:] = points[:10]
    held, asked = prepare(points), torch.tensor([64, 3, 41])
    found, items = nearest(held[asked], held, 100, asked, similarity, memory_budget=1)
    assert items.shape == (3, 69), "all but itself"
    values = similarity(held[asked], held)
    for row, query in enumerate(asked.tolist()):
        others = [item for item in range(70) if item != query]
        around = [(place_on_circle(item) - place_on_circle(query)) % 2**32 for item in range(70)]
        wanted = sorted(others, key=lambda item: (-float(values[row, item]), around[item]))
        assert items[row].tolist() == wanted
        assert found[row].tolist() == values[row, wanted].tolist()
    _, apart = nearest(held[asked], held, 100, None, similarity)
    _, alone = nearest(held[asked[1:2]], held, 100, None, similarity)
    assert apart.shape == (3, 70)
    assert apart[1].tolist() == alone[0].tolist()
    assert nearest(held[:0], held, 4, None, similarity)[1].shape == (0, 4)
