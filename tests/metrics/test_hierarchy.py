"""HP@R against the papers' definition, a loop in float64 that divides by the best order there is."""

import pytest
import torch
from by_sorting import cosines, ranked
from pretended_gpu import any_device

from levelfield.metrics import hierarchical_precision_at_r, retrieval_metrics

device = any_device


def loop(embeddings, labels, coarse, gallery=None, gallery_labels=None, gallery_coarse=None):
    """Similarity of classes 1, 1/2 and 0, by the height of what they share, over that of the best R items."""
    own = gallery is None
    gallery_labels, gallery_coarse = (labels, coarse) if own else (gallery_labels, gallery_coarse)
    order, found = ranked(cosines(embeddings, gallery), own), []
    same, near = gallery_labels[order] == labels[:, None], gallery_coarse[order] == coarse[:, None]
    for likeness in ((same.double() + near.double()) / 2).tolist():
        r = likeness.count(1.0)
        found.append(sum(likeness[:r]) / sum(sorted(likeness, reverse=True)[:r]) if r else float("nan"))
    return found


def case(seed, apart):
    draw = torch.Generator().manual_seed(seed)

    def items(count):
        labels = (torch.rand(count, generator=draw) ** 2 * 8).long()
        embeddings = torch.randn(8, 6, generator=draw)[labels] + torch.randn(count, 6, generator=draw)
        return embeddings, labels * 3 - 4, labels % 3 + 10

    return (*items(20), *items(35)) if apart else items(50)


@pytest.mark.parametrize("seed", range(6))
def test_equals_a_loop(seed, device):
    sets = case(seed, apart=seed % 2 == 1)
    there = (each.to(device) for each in sets)
    found = hierarchical_precision_at_r(*there, memory_budget=2**14 if seed % 3 else 2**28)
    assert found.device.type == device
    assert found.tolist() == pytest.approx(loop(*sets), nan_ok=True)


def test_it_is_r_precision_where_each_class_is_a_group():
    embeddings, labels, _ = case(1, apart=False)
    found = hierarchical_precision_at_r(embeddings, labels, labels + 1, distance="euclidean")
    expected = retrieval_metrics(embeddings, labels, metrics=("r_precision",), distance="euclidean", per_query=True)
    assert found.tolist() == pytest.approx(expected["r_precision"].tolist(), nan_ok=True)
    together = hierarchical_precision_at_r(embeddings, labels, torch.zeros_like(labels), distance="euclidean")
    assert together.tolist() == pytest.approx(((expected["r_precision"] + 1) / 2).tolist(), nan_ok=True)
