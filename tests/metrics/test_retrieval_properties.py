"""What must hold for any embeddings and labels."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from levelfield.metrics import retrieval_metrics

MEANS = ("map_at_r", "r_precision", "precision_at_1", "map", "mrr")


@st.composite
def labelled_embeddings(draw):
    """Random directions, no two alike, in classes of any sizes, two of which have two members."""
    size, dim = draw(st.integers(8, 40)), draw(st.integers(2, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    labels = rng.integers(0, draw(st.integers(2, 8)), size)
    labels[:4] = [0, 0, 1, 1]
    return torch.from_numpy(rng.standard_normal((size, dim))).float(), torch.from_numpy(labels)


@settings(max_examples=40, deadline=None)
@given(labelled_embeddings(), st.randoms(use_true_random=False))
def test_the_order_of_the_items_does_not_matter(case, random):
    embeddings, labels = case
    order = list(range(len(labels)))
    random.shuffle(order)
    assert retrieval_metrics(embeddings[order], labels[order]) == pytest.approx(
        retrieval_metrics(embeddings, labels), abs=1e-9
    )


@settings(max_examples=40, deadline=None)
@given(labelled_embeddings(), st.integers(-(10**6), 10**6))
def test_the_names_of_the_labels_do_not_matter(case, offset):
    embeddings, labels = case
    assert retrieval_metrics(embeddings, offset - 13 * labels) == retrieval_metrics(embeddings, labels)


@settings(max_examples=40, deadline=None)
@given(labelled_embeddings())
def test_a_far_away_class_changes_nothing_for_the_others(case):
    embeddings, labels = case
    before = retrieval_metrics(embeddings, labels, per_query=True)
    # Cosines with the others are below theirs among themselves: another dimension, and the opposite of a shared one.
    size = len(labels)
    near = torch.nn.functional.pad(torch.nn.functional.normalize(embeddings, dim=1), (0, 1), value=2.0)
    far = torch.zeros(5, near.shape[1])
    far[:, -1] = -1.0
    shared = retrieval_metrics(near, labels, per_query=True)
    after = retrieval_metrics(torch.cat([near, far]), torch.cat([labels, torch.full((5,), 77)]), per_query=True)
    for name in MEANS:
        torch.testing.assert_close(after[name][:size], shared[name], equal_nan=True)
        torch.testing.assert_close(after[name][size:], torch.ones(5, dtype=torch.float64))
        assert torch.equal(before[name].isnan(), shared[name].isnan())


@settings(max_examples=40, deadline=None)
@given(labelled_embeddings())
def test_bounds_between_the_metrics(case):
    result = retrieval_metrics(*case, recall_at=(1, 2, 3, 5, 8, 13), per_query=True)
    scored = ~result["map_at_r"].isnan()
    scores = {name: values[scored] for name, values in result.items() if name != "num_skipped"}
    assert (scores["map_at_r"] <= scores["r_precision"] + 1e-12).all()
    assert (scores["map_at_r"] <= scores["map"] + 1e-12).all()
    assert (scores["precision_at_1"] == scores["recall_at_1"]).all()
    assert (scores["precision_at_1"] <= scores["mrr"]).all()
    recalls = torch.stack([scores[f"recall_at_{k}"] for k in (1, 2, 3, 5, 8, 13)])
    assert (recalls.diff(dim=0) >= 0).all()
    assert all(((values >= 0) & (values <= 1 + 1e-12)).all() for values in scores.values())


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(2, 6), min_size=2, max_size=7), st.integers(0, 1000))
def test_perfect_retrieval_scores_one(sizes, seed):
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    noise = torch.randn(len(labels), 8, generator=torch.Generator().manual_seed(seed))
    result = retrieval_metrics(10 * torch.eye(8)[labels] + 0.1 * noise, labels)
    assert result == pytest.approx({**dict.fromkeys(result, 1.0), "num_skipped": 0})
