"""Values against loops over all pairs in float64."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
from pretended_gpu import any_device

from levelfield.core.numerics import CLIP_RADIUS, in_ball
from levelfield.losses.hyperbolic_cross_entropy import poincare_distances
from levelfield.metrics import verification, verification_metrics
from levelfield.metrics.counts import Roc
from levelfield.metrics.definitions import title_of


def all_pairs(embeddings, labels, gallery=None, gallery_labels=None, likeness=None):
    """Each pair's similarity, rounded to what is told apart, and the two classes."""
    likeness = likeness or (lambda one, other: float(one @ other / one.norm() / other.norm()))
    embeddings, gallery = embeddings.double(), None if gallery is None else gallery.double()
    if gallery is None:
        pairs = itertools.combinations(zip(embeddings, labels.tolist(), strict=True), 2)
    else:
        items = zip(gallery, gallery_labels.tolist(), strict=True)
        pairs = itertools.product(zip(embeddings, labels.tolist(), strict=True), items)
    return [(round(likeness(one, other) * 2**21), own, theirs) for (one, own), (other, theirs) in pairs]


def loop(pairs, exponents=(1, 2)):
    """The definitions, one threshold at a time."""
    same = [value for value, own, theirs in pairs if own == theirs]
    other = [value for value, own, theirs in pairs if own != theirs]
    rates = [(0.0, 0.0)]
    for threshold in sorted({value for value, *_ in pairs}, reverse=True):
        accepted = [sum(value >= threshold for value in values) for values in (other, same)]
        rates.append((Fraction(accepted[0], len(other)), Fraction(accepted[1], len(same))))
    scores = {
        f"tar_at_far_1e-{n}": float(max(tar for far, tar in rates if far <= Fraction(1, 10**n))) for n in exponents
    }
    for (far, tar), (next_far, next_tar) in itertools.pairwise(rates):
        if next_far >= 1 - next_tar:
            share = (1 - tar - far) / ((next_far - far) + (next_tar - tar))
            scores["eer"] = float(far + share * (next_far - far))
            break
    wins = sum((one > theirs) + 0.5 * (one == theirs) for one in same for theirs in other)
    return scores | {"auroc": wins / len(same) / len(other)}


def case(seed, size=30):
    """Unequal classes; every third with exact ties; every second with a gallery."""
    draw = torch.Generator().manual_seed(seed)
    dim = 16 if seed % 3 == 0 else 5
    centres = torch.randn(7, dim, generator=draw)

    def items(count):
        labels = (torch.rand(count, generator=draw) ** 2 * 7).long()
        embeddings = centres[labels] + torch.randn(count, dim, generator=draw)
        return (embeddings.sign() if seed % 3 == 0 else embeddings), labels * 5 - 9

    return (*items(size), *items(size - 9)) if seed % 2 else items(size)


device = any_device
NAMES = ("tar_at_far_1e-1", "tar_at_far_1e-2", "eer", "auroc")


@pytest.mark.parametrize("seed", range(8))
def test_equals_a_loop_over_all_pairs(seed, device, monkeypatch):
    monkeypatch.setattr(verification, "FEWEST_ERRORS", 1)
    sets = case(seed)
    budget = 2**20 if seed % 4 < 2 or device != "cpu" else 2**10  # a few rows at a time
    found = verification_metrics(*(each.to(device) for each in sets), metrics=NAMES, memory_budget=budget)
    pairs = all_pairs(*sets)
    assert found.scores == pytest.approx(loop(pairs), abs=1e-9)
    assert (found.num_same, found.num_other) == (sum(a == b for _, a, b in pairs), sum(a != b for _, a, b in pairs))
    for exponent in (1, 2):
        threshold = found.thresholds[f"tar_at_far_1e-{exponent}"] * 2**21
        others = [value >= threshold for value, own, theirs in pairs if own != theirs]
        assert 0 <= sum(others) <= len(others) / 10**exponent


@pytest.mark.parametrize("distance", ["euclidean", "hamming", "poincare"])
def test_other_distances_rank_alike(distance, monkeypatch):
    monkeypatch.setattr(verification, "FEWEST_ERRORS", 1)
    embeddings, labels = case(0 if distance == "hamming" else 2)
    bound = 2 * float(embeddings.double().norm(dim=1).max())
    apart, likeness = {
        "euclidean": (lambda one, other: float((one - other).norm()), lambda distance: 1 - distance / bound),
        "hamming": (lambda one, other: int((one != other).sum()), lambda bits: 1 - 2 * bits / 16),
        "poincare": (
            lambda one, other: float(poincare_distances(in_ball(one[None]), in_ball(other[None]))),
            lambda distance: 1 - distance / (2 * CLIP_RADIUS),
        ),
    }[distance]
    found = verification_metrics(embeddings, labels, metrics=NAMES, distance=distance)
    pairs = all_pairs(embeddings, labels, likeness=lambda *pair: likeness(apart(*pair)))
    assert found.scores == pytest.approx(loop(pairs), abs=1e-9)
    largest = found.thresholds["tar_at_far_1e-1"] + (0 if distance == "hamming" else 1e-5)
    accepted = [value >= likeness(largest) * 2**21 for value, own, theirs in pairs if own != theirs]
    assert len(accepted) / 40 < sum(accepted) <= len(accepted) / 10


def test_a_rate_says_where_the_pairs_are_too_few_for_it():
    draw = torch.Generator().manual_seed(1)
    labels = torch.arange(100) // 10
    embeddings = torch.randn(10, 8, generator=draw)[labels] + torch.randn(100, 8, generator=draw)
    found = verification_metrics(embeddings, labels)
    assert list(found.scores) == ["tar_at_far_1e-2", "eer", "auroc"]
    assert found.num_other == 4500
    assert found.not_given["tar_at_far_1e-3"] == ("it would rest on 4 of 4,500 pairs of two classes, and 30 are needed")
    assert set(found.not_given) == {f"tar_at_far_1e-{n}" for n in (3, 4, 5, 6)}
    assert title_of("tar_at_far_1e-3") == "TAR at FAR 1e-3"


def test_a_rate_that_is_reached_exactly_is_not_exceeded():
    roc = Roc.of(np.array([5, 5]), np.array([1, 99]))
    assert roc.tar_at(0.01) == 0.5


def test_equal_embeddings_are_accepted_together():
    labels = torch.arange(40) % 4
    names = ("tar_at_far_1e-1", "eer", "auroc")
    found = verification_metrics(torch.ones(40, 3), labels, metrics=names)
    assert found.scores == {"tar_at_far_1e-1": 0.0, "eer": 0.5, "auroc": 0.5}
    assert found.thresholds == {}, "no threshold accepts one pair in ten"
    found = verification_metrics(torch.eye(4)[labels], labels, metrics=names)
    assert found.scores == {"tar_at_far_1e-1": 1.0, "eer": 0.0, "auroc": 1.0}


@pytest.mark.parametrize(
    ("embeddings", "labels", "further", "complaint"),
    [
        (torch.randn(4, 2), torch.arange(4), {}, "no pair of one class among the 4"),
        (torch.randn(4, 2), torch.zeros(4).long(), {}, "no pair of two classes"),
        (torch.randn(4, 2), torch.arange(4) % 2, {"metrics": ("map_at_r",)}, "no such metric 'map_at_r'"),
        (torch.randn(4, 2), torch.arange(4) % 2, {"metrics": ("tar_at_far_1e-0",)}, "at least 1"),
        (torch.randn(4, 2), torch.arange(4) % 2, {"metrics": "eer"}, "is one string"),
        (torch.randn(4, 2), torch.arange(4) % 2, {"gallery": torch.randn(3, 2)}, "pass both or neither"),
    ],
)
def test_mistakes_are_named(embeddings, labels, further, complaint):
    with pytest.raises(ValueError, match=complaint):
        verification_metrics(embeddings, labels, **further)
