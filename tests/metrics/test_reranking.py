"""Ranking by k-reciprocal neighbours against a loop in float64 written from the paper."""

import math
import re

import pytest
import torch
from torch.nn.functional import normalize

from levelfield.metrics import reranking, retrieval_metrics
from levelfield.metrics.reranking import KReciprocal, parse_reranking


def case(seed, apart):
    draw = torch.Generator().manual_seed(seed)
    centres = torch.randn(6, 8, generator=draw)

    def items(count):
        labels = torch.randint(6, (count,), generator=draw)
        return centres[labels] + 1.2 * torch.randn(count, 8, generator=draw), labels

    return (*items(14), *items(37)) if apart else items(45)


def order(query, items, left_out=()):
    """Numbers of the items by falling cosine."""
    return sorted((j for j in range(len(items)) if j not in left_out), key=lambda j: (-float(query @ items[j]), j))


def map_at_r(distances, labels, gallery_labels, itself):
    """Of each query, from the distances of a loop."""
    found = []
    for i, row in enumerate(distances):
        ranked = sorted((j for j in range(len(row)) if j != itself(i)), key=lambda j: (row[j], j))
        hits = [int(gallery_labels[j]) == int(labels[i]) for j in ranked]
        r = sum(hits)
        found.append(sum(sum(hits[: k + 1]) / (k + 1) for k in range(r) if hits[k]) / r if r else math.nan)
    return found


def check(rerank, sets, distances, itself):
    scores = retrieval_metrics(*sets, metrics=("map_at_r",), per_query=True, rerank=rerank)["map_at_r"]
    expected = map_at_r(distances, sets[1], sets[-1], itself)
    assert scores.tolist() == pytest.approx(expected, abs=1e-9, nan_ok=True)
    plain = retrieval_metrics(*sets, metrics=("map_at_r",), per_query=True)["map_at_r"]
    assert not torch.equal(scores.nan_to_num(), plain.nan_to_num())


def k_reciprocal(items, queries, gallery, k1, k2, weight):
    """d* of Zhong et al., an item being its own first neighbour."""
    ranked = [[i, *order(items[i], items, (i,))] for i in range(len(items))]

    def reciprocal(i, k):
        return {j for j in ranked[i][: k + 1] if i in ranked[j][: k + 1]}

    def robust(i):
        own = reciprocal(i, k1)
        return own.union(
            *(further for q in own if len(own & (further := reciprocal(q, k1 // 2))) >= 2 / 3 * len(further) - 1e-12)
        )

    def distance(i, j):
        return 1 - float(items[i] @ items[j])

    vectors = []
    for i in range(len(items)):
        members = robust(i)
        vectors.append([math.exp(-distance(i, j)) if j in members else 0.0 for j in range(len(items))])
    averaged = []
    for i in range(len(items)):
        kept = ranked[i][:k2]
        averaged.append([sum(vectors[j][column] for j in kept) / len(kept) for column in range(len(items))])
    rows = []
    for p in queries:
        row = []
        for g in gallery:
            least = sum(map(min, averaged[p], averaged[g]))
            most = sum(map(max, averaged[p], averaged[g]))
            row.append((1 - weight) * (1 - least / most) + weight * distance(p, g))
        rows.append(row)
    return rows


@pytest.mark.parametrize(
    ("apart", "settings"),
    [(False, KReciprocal(7, 3, 0.3)), (True, KReciprocal(6, 1, 0.1)), (False, KReciprocal(60, 4, 0.5))],
)
def test_k_reciprocal_is_that_of_the_paper(apart, settings, monkeypatch):
    sets = case(1, apart)
    unit = normalize(torch.cat(sets[::2]).double(), dim=1)
    queries = range(len(sets[0]))
    gallery = range(len(sets[0]), len(unit)) if apart else queries
    distances = k_reciprocal(unit, queries, gallery, settings.k1, settings.k2, settings.weight)
    monkeypatch.setattr(reranking, "BLOCK_VALUES", 2**9)
    ranked = settings(unit[: len(sets[0])].float(), unit[gallery].float(), not apart, 2**16)
    found = -ranked.similarity(ranked.queries_ND, ranked.gallery_GD)
    torch.testing.assert_close(found.double(), torch.tensor(distances).double(), atol=1e-6, rtol=0)
    check(settings, sets, distances, (lambda i: None) if apart else (lambda i: i))


def test_the_plain_distance_alone_changes_nothing():
    sets = case(4, False)
    assert retrieval_metrics(*sets, rerank=KReciprocal(weight=1.0)) == retrieval_metrics(*sets)


def test_few_items_equal_items_and_little_memory():
    rerank = KReciprocal()
    embeddings, labels = case(5, False)
    scores = retrieval_metrics(embeddings, labels, rerank=rerank)
    assert retrieval_metrics(embeddings, labels, rerank=rerank, memory_budget=2**17) == pytest.approx(scores, abs=1e-9)
    few = retrieval_metrics(embeddings[:5], torch.tensor([0, 0, 1, 1, 1]), rerank=rerank)
    assert all(0 <= value <= 1 for value in few.values())
    same = retrieval_metrics(torch.ones(12, 3), torch.arange(12) % 2, rerank=rerank)
    assert same == retrieval_metrics(torch.ones(12, 3), torch.arange(12) % 2), "ties stay in the order of the items"


def test_settings_are_read_from_the_name():
    assert parse_reranking("k_reciprocal") == KReciprocal(20, 6, 0.3)
    assert parse_reranking("k_reciprocal:k1=5,weight=1") == KReciprocal(5, 6, 1.0)
    assert parse_reranking(str(KReciprocal(5, 2, 0.25))) == KReciprocal(5, 2, 0.25)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("kreciprocal", "k_reciprocal"),
        ("alpha_qe", "alpha_qe"),
        ("dba:neighbors=3", "dba"),
        ("k_reciprocal:k=3", "'k'"),
        ("k_reciprocal:k1=2.5", "k1=2.5"),
        ("k_reciprocal:weight=x", "weight=x"),
        ("k_reciprocal:weight=nan", "weight=nan"),
        ("k_reciprocal:weight=2", "weight=2"),
        ("k_reciprocal:k1=0", "k1=0"),
        ("k_reciprocal:k2=0", "k2=0"),
        ("k_reciprocal:k1=3,k2=9", "k1=3,k2=9"),
    ],
)
def test_mistakes_are_named(text, named):
    with pytest.raises(ValueError, match=re.escape(named)):
        parse_reranking(text)


def test_other_distances_are_refused():
    with pytest.raises(ValueError, match="by cosine"):
        retrieval_metrics(torch.randn(4, 2), torch.arange(4) % 2, distance="euclidean", rerank=KReciprocal())
