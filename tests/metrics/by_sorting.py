"""Scores in float64 from stable sorts of whole rows; the order of equal similarities is written from its definition."""

from functools import lru_cache

import pytest
import torch


def position_on_circle(number):
    """MurmurHash3's finaliser of 32 bits, as its page prints it."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        number = (number ^ number >> shift) * factor % 2**32
    return number


@lru_cache(maxsize=4)
def around(num_queries, num_gallery, excludes_self):
    """The items of the gallery around the circle from the position of each query."""
    first_query = 0 if excludes_self else num_gallery
    positions = torch.tensor([position_on_circle(number) for number in range(first_query + num_queries)])
    return ((positions[:num_gallery] - positions[first_query:, None]) % 2**32).argsort(dim=1)


def scores_by_sorting(similarities, labels, gallery_labels=None):
    """Textbook definitions; similarities are rounded so that mathematically equal ones are equal numbers."""
    excludes_self, similarities = gallery_labels is None, similarities.double().round(decimals=9)
    if excludes_self:
        gallery_labels, similarities = labels, similarities.clone().fill_diagonal_(-torch.inf)
    items = around(*similarities.shape, excludes_self)
    order = items.gather(1, similarities.gather(1, items).sort(dim=1, descending=True, stable=True).indices)
    hits = gallery_labels[order] == labels[:, None]
    if excludes_self:
        hits[:, -1] = False
    relevant = hits.sum(1)
    hits, relevant = hits[relevant > 0], relevant[relevant > 0]
    rank = torch.arange(1, hits.shape[1] + 1)
    precision = hits * hits.cumsum(1) / rank.double()
    first = hits.int().argmax(1) + 1
    scores = {
        "map_at_r": (precision * (rank <= relevant[:, None])).sum(1) / relevant,
        "r_precision": (hits * (rank <= relevant[:, None])).sum(1) / relevant,
        "precision_at_1": hits[:, 0].double(),
        "map": precision.sum(1) / relevant,
        "mrr": 1 / first,
        "map_at_5": precision[:, :5].sum(1) / relevant.clamp(max=5),
        **{f"recall_at_{k}": (first <= k).double() for k in (1, 2, 3, 4, 8)},
    }
    means = {name: float(values.double().mean()) for name, values in scores.items()}
    return {**means, "num_skipped": len(labels) - len(hits)}


def cosine_scores(embeddings, labels, gallery=None, gallery_labels=None):
    others = embeddings if gallery is None else gallery
    unit, others = (torch.nn.functional.normalize(each.double(), dim=1) for each in (embeddings, others))
    return scores_by_sorting(unit @ others.T, labels, gallery_labels)


def expected(scores, result):
    return pytest.approx({name: scores[name] for name in result}, abs=1e-6)
