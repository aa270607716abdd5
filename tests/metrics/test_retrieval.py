"""Values against sorting in float64 and the paper's Table 3."""

import pytest
import torch
from by_sorting import cosines, expected, scores_by_sorting
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from levelfield.metrics import retrieval_metrics
from levelfield.metrics.retrieval import half_interval

NAMES = ("map_at_r", "r_precision", "precision_at_1", "recall", "map", "mrr", "map_at_5")


KINDS = {
    # Rows of signs in 4 or 16 dimensions have entries of 1/2 or 1/4: float32 computes their products exactly.
    "signs in 4 dimensions": lambda count, draw: torch.randn(count, 4, generator=draw).sign(),
    "signs in 16 dimensions": lambda count, draw: torch.randn(count, 16, generator=draw).sign(),
    # The places that a metric reads end within a tie, or just before or after one.
    "three rows": lambda count, draw: (
        torch.eye(3)[torch.randint(0, 3, (count,), generator=draw)] * torch.tensor([1.0, 1.0, -1.0])
    ),
    "no ties": lambda count, draw: torch.randn(count, 7, generator=draw),
}


@settings(max_examples=250, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from(tuple(KINDS)),
    st.integers(2, 12),
    st.booleans(),
    st.booleans(),
    st.one_of(st.just(NAMES), st.lists(st.sampled_from((*NAMES, "recall_at_3")), min_size=1, max_size=3, unique=True)),
)
def test_equals_sorting_in_float64(seed, kind, num_classes, uneven, gallery_apart, names):
    """Even classes, or uneven ones with singletons; a gallery apart or not."""
    generator = torch.Generator().manual_seed(seed)

    def draw(count):
        labels = torch.arange(count) % num_classes
        if uneven:
            labels = (torch.rand(count, generator=generator) ** 2 * num_classes).long() * 7 - 5
            labels[:4] = torch.tensor([-5, -5, 2, 2])
        return KINDS[kind](count, generator), labels

    size = 2 * num_classes + seed % 40
    case = (*draw(size), *draw(size + 3)) if gallery_apart else draw(size)
    similarities, order = cosines(case[0], case[-2]).sort(dim=1)
    relevant = case[-1][order] == case[1][:, None]
    # Where a relevant and another item differ by no more than float32 rounds, the processor chooses the first.
    assume(kind != "no ties" or not ((similarities.diff() < 3e-7) & relevant.diff()).any())
    found = retrieval_metrics(*case, metrics=names)
    assert found == expected(scores_by_sorting(cosines(case[0], case[-2]), case[1], *case[3:]), found)


@pytest.mark.parametrize(
    ("correct", "r_precision", "map_at_r"),
    [((1,), 0.10, 0.10), ((1, 10), 0.20, 0.12), ((1, 2), 0.20, 0.20), (range(1, 11), 1.0, 1.0)],
)
def test_reality_check_table_3(correct, r_precision, map_at_r):
    # Ten relevant items; those that are not among the first ten come after five others.
    hits = [rank in correct for rank in range(1, 11)] + [False] * 5 + [True] * (10 - len(correct))
    angles = torch.linspace(0.01, 1.5, len(hits) + 1)
    gallery, labels = torch.stack([angles.cos(), angles.sin()], dim=1), 2 - torch.tensor([*hits, False]).long()
    query = torch.tensor([[1.0, 0.0]])
    result = retrieval_metrics(query, torch.tensor([1]), gallery, labels, recall_at=(1,))
    assert result["recall_at_1"] == 1.0
    assert result["r_precision"] == pytest.approx(r_precision)
    assert result["map_at_r"] == pytest.approx(map_at_r)


def test_a_sample_of_the_queries_estimates_the_mean_with_its_interval():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(800) % 100
    embeddings = torch.randn(100, 24, generator=generator)[labels] + 1.4 * torch.randn(800, 24, generator=generator)
    exact = retrieval_metrics(embeddings, labels, metrics=("map_at_r",))["map_at_r"]
    covered = 0
    for seed in range(100):
        result = retrieval_metrics(embeddings, labels, metrics=("map_at_r",), num_queries=150, seed=seed)
        covered += abs(result["map_at_r"] - exact) <= result["map_at_r_ci95"]
    # Binomial(100, 0.95) lies outside 88..100 once in a thousand.
    assert covered >= 88
    assert retrieval_metrics(embeddings, labels, metrics=("map_at_r",), num_queries=150, seed=99) == result
    whole = retrieval_metrics(embeddings, labels, metrics=("map_at_r",), num_queries=10_000)
    assert (whole["map_at_r"], whole["map_at_r_ci95"]) == (pytest.approx(exact, abs=1e-9), 0)


def test_the_interval_of_half_a_population():
    """1.96 times the standard error sqrt(1/3) / sqrt(4), times sqrt(1 - 4/8) of drawing without replacement."""
    scores = torch.tensor([0.0, 0.0, 1.0, 1.0])
    assert half_interval(scores, 8) == pytest.approx(1.959964 * (1 / 3 / 4 / 2) ** 0.5)
    assert half_interval(scores, 4) == 0


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int16])
@pytest.mark.parametrize("of_embeddings", [torch.bfloat16, torch.float16, torch.float64])
def test_labels_are_integers_of_any_type_and_embeddings_are_scored_in_float32(dtype, of_embeddings):
    embeddings = torch.randn(80, 16, generator=torch.Generator().manual_seed(0)).to(of_embeddings)
    labels = torch.arange(80) % 9
    assert retrieval_metrics(embeddings, labels.to(dtype)) == retrieval_metrics(embeddings.float(), labels)
