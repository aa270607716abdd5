"""Scores in float64 from stable sorts of whole rows; the order of equal similarities is written from its definition."""

from functools import lru_cache

import pytest
import torch
from sklearn.metrics import ndcg_score
from torch.nn.functional import normalize


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


def ranked(similarities, excludes_self):
    """The items of each row; similarities are rounded so that mathematically equal ones are equal numbers."""
    similarities = similarities.double().round(decimals=9)
    if excludes_self:
        similarities.fill_diagonal_(-torch.inf)
    items = around(*similarities.shape, excludes_self)
    order = items.gather(1, similarities.gather(1, items).sort(dim=1, descending=True, stable=True).indices)
    return order[:, :-1] if excludes_self else order


def scores_by_sorting(similarities, labels, gallery_labels=None, groups=None, per_query=False):
    """Textbook definitions, of labels or label sets; groups are of the queries and of the gallery."""
    theirs = labels if gallery_labels is None else gallery_labels
    shared = (labels[:, None] & theirs).sum(2) if labels.ndim == 2 else (labels[:, None] == theirs).long()
    if groups is not None:
        gone = (shared > 0) & (groups[0][:, None] == groups[1])
        similarities, shared = similarities.masked_fill(gone, -torch.inf), shared.masked_fill(gone, 0)
    shared = shared.gather(1, ranked(similarities, gallery_labels is None))
    matched = shared.any(1)
    hits = shared[matched] > 0
    relevant, rank = hits.sum(1).double(), torch.arange(1, hits.shape[1] + 1)
    precision = hits * hits.cumsum(1) / rank.double()
    first = hits.int().argmax(1).double() + 1
    scores = {
        "map_at_r": (precision * (rank <= relevant[:, None])).sum(1) / relevant,
        "r_precision": (hits * (rank <= relevant[:, None])).sum(1) / relevant,
        "precision_at_1": hits[:, 0].double(),
        "map": precision.sum(1) / relevant,
        "mrr": 1 / first,
        "map_at_5": precision[:, :5].sum(1) / relevant.clamp(max=5),
        **{f"recall_at_{k}": (first <= k).double() for k in (1, 2, 3, 4, 8)},
    }
    if per_query:
        gained = [ndcg_score([row.tolist()], [(-rank).tolist()], k=5) for row in shared[matched]]
        scores["ndcg_at_5"] = rank.new_tensor(gained, dtype=torch.float64)
        nothing = torch.full(matched.shape, torch.nan, dtype=torch.float64)
        return {name: nothing.masked_scatter(matched, values.double()) for name, values in scores.items()}
    means = {name: float(values.double().mean()) for name, values in scores.items()}
    return {**means, "num_skipped": len(labels) - len(hits)}


def cosines(embeddings, gallery=None):
    unit, others = (
        normalize(each.double(), dim=1) for each in (embeddings, embeddings if gallery is None else gallery)
    )
    return unit @ others.T


def expected(scores, result):
    return pytest.approx({name: scores[name] for name in result}, abs=1e-6)
