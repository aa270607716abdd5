"""Values against the ROC curve that scikit-learn draws of all pairs in float64."""

import itertools

import numpy as np
import pytest
import torch
from pretended_gpu import any_device
from sklearn.metrics import roc_auc_score, roc_curve

from levelfield.metrics import verification, verification_metrics
from levelfield.metrics.counts import Roc
from levelfield.metrics.definitions import title_of


def all_pairs(embeddings, labels, gallery=None, gallery_labels=None):
    """Each pair's cosine, rounded to what is told apart, and the two classes."""
    queries = zip(embeddings.double(), labels.tolist(), strict=True)
    if gallery is None:
        pairs = itertools.combinations(queries, 2)
    else:
        pairs = itertools.product(queries, zip(gallery.double(), gallery_labels.tolist(), strict=True))
    return [
        (round(float(one @ other / one.norm() / other.norm()) * 2**21), own, theirs)
        for (one, own), (other, theirs) in pairs
    ]


def by_scikit_learn(pairs, exponents=(1, 2)):
    """From the curve with all thresholds; the EER where its line crosses FAR = 1 - TAR."""
    values, same = [value for value, *_ in pairs], [own == theirs for _, own, theirs in pairs]
    far, tar, _ = roc_curve(same, values, drop_intermediate=False)
    scores = {f"tar_at_far_1e-{n}": tar[far <= 10.0**-n].max() for n in exponents}
    i = int((far + tar >= 1).argmax())
    share = (1 - (far + tar)[i - 1]) / ((far + tar)[i] - (far + tar)[i - 1])
    return scores | {"eer": far[i - 1] + share * (far[i] - far[i - 1]), "auroc": roc_auc_score(same, values)}


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
def test_equals_scikit_learns_curve_of_all_pairs(seed, device, monkeypatch):
    monkeypatch.setattr(verification, "FEWEST_ERRORS", 1)
    sets = case(seed)
    budget = 2**20 if seed % 4 < 2 or device != "cpu" else 2**10  # a few rows at a time
    found = verification_metrics(*(each.to(device) for each in sets), metrics=NAMES, memory_budget=budget)
    pairs = all_pairs(*sets)
    assert found.scores == pytest.approx(by_scikit_learn(pairs), abs=1e-9)
    assert (found.num_same, found.num_other) == (sum(a == b for _, a, b in pairs), sum(a != b for _, a, b in pairs))
    for exponent in (1, 2):
        threshold = found.thresholds[f"tar_at_far_1e-{exponent}"] * 2**21
        others = [value >= threshold for value, own, theirs in pairs if own != theirs]
        assert 0 <= sum(others) <= len(others) / 10**exponent


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
    assert roc.tar_T[roc.last_accepted(0.01)] == 0.5


def test_equal_embeddings_are_accepted_together():
    labels = torch.arange(40) % 4
    names = ("tar_at_far_1e-1", "eer", "auroc")
    found = verification_metrics(torch.ones(40, 3), labels, metrics=names)
    assert found.scores == {"tar_at_far_1e-1": 0.0, "eer": 0.5, "auroc": 0.5}
    assert found.thresholds == {}, "no threshold accepts one pair in ten"
    found = verification_metrics(torch.eye(4)[labels], labels, metrics=names)
    assert found.scores == {"tar_at_far_1e-1": 1.0, "eer": 0.0, "auroc": 1.0}
