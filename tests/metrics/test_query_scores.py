"""Every way of ranking gives the scores of a product in float64."""

import math
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate

import pytest
import torch
from matmul_precision import COARSE, Products, coarse_on_the_cpu, made, older, precisions
from tie_order import ranked
from torch.nn.functional import normalize
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from levelfield.metrics import distances, pack_bits, ranking, retrieval_metrics
from levelfield.metrics.retrieval import half_interval

NEIGHBOR_METRICS = ("map_at_r", "r_precision", "precision_at_1", "recall", "map_at_5")
NO_MEMORY = 1


def embedding_space(num_items=2500, dim=24, num_classes=300, seed=0, spread=1.0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, num_classes, (num_items,), generator=generator)
    centres = torch.randn(num_classes, dim, generator=generator)
    embeddings = spread * (0.7 * centres[labels] + torch.randn(num_items, dim, generator=generator))
    # Of one label: on some processors the cosines with equal items differ in the last bit, and either may be first.
    embeddings[100:150], labels[100:150] = embeddings[:50], labels[:50]
    return embeddings, labels


def scores_in_float64(similarities, labels, excludes_self=True, gallery_labels=None):
    """Scores from stable sorts of whole rows of float64 similarities."""
    gallery_labels = labels if gallery_labels is None else gallery_labels
    if excludes_self:
        similarities = similarities.clone().fill_diagonal_(-torch.inf)
    order = ranked(similarities, excludes_self)
    hits = gallery_labels[order] == labels[:, None]
    if excludes_self:
        hits[:, -1] = False
    relevant = hits.sum(1)
    hits, relevant = hits[relevant > 0], relevant[relevant > 0]
    place = torch.arange(1, hits.shape[1] + 1)
    precision = hits * hits.cumsum(1) / place
    first = hits.int().argmax(1) + 1
    scores = {
        "map_at_r": (precision * (place <= relevant[:, None])).sum(1) / relevant,
        "r_precision": (hits * (place <= relevant[:, None])).sum(1) / relevant,
        "precision_at_1": hits[:, 0].double(),
        "map": precision.sum(1) / relevant,
        "mrr": 1 / first,
        "map_at_5": precision[:, :5].sum(1) / relevant.clamp(max=5),
        **{f"recall_at_{k}": (first <= k).double() for k in (1, 2, 4, 8)},
    }
    means = {name: float(values.double().mean()) for name, values in scores.items()}
    return {**means, "num_skipped": len(labels) - len(hits)}


def expected(scores, result):
    return pytest.approx({name: scores[name] for name in result}, abs=1e-6)


@pytest.mark.parametrize(
    ("budget", "metrics", "dim"),
    [
        (NO_MEMORY, NEIGHBOR_METRICS, 24),
        (NO_MEMORY, (*NEIGHBOR_METRICS, "map", "mrr"), 24),
        (2**30, NEIGHBOR_METRICS, 256),
    ],
)
def test_every_way_equals_float64(budget, metrics, dim):
    embeddings, labels = embedding_space(dim=dim)
    unit = normalize(embeddings.double(), dim=1)
    result = retrieval_metrics(embeddings, labels, metrics=metrics, memory_budget=budget)
    assert result == expected(scores_in_float64(unit @ unit.T, labels), result)


@pytest.mark.parametrize("metrics", [NEIGHBOR_METRICS, (*NEIGHBOR_METRICS, "map", "mrr")])
def test_gallery_apart(metrics):
    embeddings, labels = embedding_space(900)
    gallery, gallery_labels = embedding_space(1400, seed=1, num_classes=250)
    result = retrieval_metrics(embeddings, labels, gallery, gallery_labels, metrics=metrics)
    similarities = normalize(embeddings.double(), dim=1) @ normalize(gallery.double(), dim=1).T
    assert result == expected(scores_in_float64(similarities, labels, False, gallery_labels), result)


def test_autocast_outside_changes_nothing():
    embeddings, labels = embedding_space(num_items=600)
    before = retrieval_metrics(embeddings, labels)
    with torch.autocast("cpu", torch.bfloat16):
        assert retrieval_metrics(embeddings, labels) == before


@pytest.mark.parametrize("budget", [NO_MEMORY, 2**30])
def test_euclidean_on_raw_embeddings(budget):
    embeddings, labels = embedding_space(num_items=900)
    embeddings = embeddings + 50
    exact = embeddings.double()
    similarities = -(exact[:, None] - exact).square().sum(2)
    result = retrieval_metrics(embeddings, labels, distance="euclidean", memory_budget=budget)
    assert result == expected(scores_in_float64(similarities, labels), result)


@pytest.mark.parametrize("budget", [NO_MEMORY, 2**30])
def test_hamming_on_packed_bits(budget):
    embeddings, labels = embedding_space(num_items=900, dim=21)
    bits = embeddings > 0
    similarities = -(bits[:, None] != bits).sum(2).double()
    result = retrieval_metrics(embeddings, labels, distance="hamming", memory_budget=budget)
    assert result == expected(scores_in_float64(similarities, labels), result)
    packed = pack_bits(embeddings)
    assert packed.shape == (900, 3)
    assert packed.dtype == torch.uint8
    assert retrieval_metrics(packed, labels, distance="hamming", memory_budget=budget) == result


def test_a_sample_of_the_queries_estimates_the_mean_with_its_interval():
    embeddings, labels = embedding_space(num_items=800, num_classes=100)
    exact = retrieval_metrics(embeddings, labels, metrics=("map_at_r",))["map_at_r"]
    covered = 0
    for seed in range(100):
        result = retrieval_metrics(embeddings, labels, metrics=("map_at_r",), num_queries=150, seed=seed)
        covered += abs(result["map_at_r"] - exact) <= result["map_at_r_ci95"]
    # Binomial(100, 0.95) lies outside 88..100 once in a thousand.
    assert covered >= 88
    again = retrieval_metrics(embeddings, labels, metrics=("map_at_r",), num_queries=150, seed=99)
    assert again == result
    whole = retrieval_metrics(embeddings, labels, metrics=("map_at_r",), num_queries=10_000)
    assert whole["map_at_r"] == pytest.approx(exact, abs=1e-9)
    assert whole["map_at_r_ci95"] == 0


def test_the_interval_of_half_a_population():
    """1.96 times the standard error sqrt(1/3) / sqrt(4), times sqrt(1 - 4/8) of drawing without replacement."""
    scores = torch.tensor([0.0, 0.0, 1.0, 1.0])
    assert half_interval(scores, 8) == pytest.approx(1.959964 * (1 / 3 / 4 / 2) ** 0.5)
    assert half_interval(scores, 4) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"distance": "manhattan"}, "no such distance 'manhattan'; known are cosine"),
        ({"num_queries": 1}, "an interval needs at least 2"),
    ],
)
def test_mistakes_raise(arguments, message):
    embeddings, labels = embedding_space(num_items=200)
    with pytest.raises(ValueError, match=message):
        retrieval_metrics(embeddings, labels, **arguments)


@pytest.mark.parametrize("distance", ["cosine", "euclidean", "hamming"])
@pytest.mark.parametrize(
    ("dtype", "exponents"), [("float32", (-116, -46, 63, 120)), ("float64", (-1000, -100, 133, 1000))]
)
def test_the_scale_of_the_embeddings_changes_nothing(distance, dtype, exponents):
    """By powers of two, which round nothing."""
    embeddings, labels = embedding_space(num_items=300, num_classes=40)
    expected = retrieval_metrics(embeddings, labels, distance=distance)
    plain = retrieval_metrics(embeddings[:100], labels[:100], embeddings[100:], labels[100:], distance=distance)
    for exponent in exponents:
        scaled = embeddings.to(getattr(torch, dtype)) * 2.0**exponent
        assert retrieval_metrics(scaled, labels, distance=distance) == pytest.approx(expected, abs=1e-9)
        apart = retrieval_metrics(scaled[:100], labels[:100], scaled[100:], labels[100:], distance=distance)
        assert apart == pytest.approx(plain, abs=1e-9)
        assert torch.equal(scaled, embeddings.to(scaled.dtype) * 2.0**exponent)


@pytest.mark.parametrize(
    ("distance", "coarse"),
    [
        *(("cosine", coarse) for coarse in COARSE.values()),
        *((distance, coarse_on_the_cpu) for distance in ("euclidean", "hamming", "poincare")),
    ],
)
def test_products_are_true_float32_by_whichever_name_torch_was_told_otherwise(distance, coarse):
    embeddings, labels = embedding_space(num_items=600)
    expected = [retrieval_metrics(embeddings, labels, distance=distance, memory_budget=b) for b in (NO_MEMORY, 2**30)]
    with made(coarse):
        before = precisions(), older()
        with Products() as products:
            found = [
                retrieval_metrics(embeddings, labels, distance=distance, memory_budget=b) for b in (NO_MEMORY, 2**30)
            ]
        assert found == expected
        assert set(products.seen) == {("ieee", "ieee")}
        assert (precisions(), older()) == before


def peak_bytes(run):
    """The most that torch's allocator has handed out at once; numpy's copies are of eight rows."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as traced:
        run()
    events = [event for event in traced.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())))


@pytest.fixture
def small_rooms(monkeypatch):
    """For ties and tiles, which have memory of their own beside the budget and the copy of the embeddings."""
    monkeypatch.setattr(distances, "TILE", 64)
    monkeypatch.setattr(ranking, "TEMPORARY_VALUES", 2**12)


@pytest.mark.parametrize(
    ("distance", "num_classes", "tied"),
    [
        ("cosine", 300, False),
        ("cosine", 300, True),
        ("cosine", 2, False),
        ("euclidean", 300, False),
        ("hamming", 300, True),
    ],
)
@pytest.mark.parametrize("budget", [2**22, 2**23])
@pytest.mark.usefixtures("small_rooms")
def test_memory_stays_within_the_budget(distance, num_classes, tied, budget):
    labels = torch.arange(4000) % num_classes
    embeddings = torch.randn(4000, 128, generator=torch.Generator().manual_seed(0))
    embeddings = embeddings[:, :16].sign() if tied else embeddings
    peak = peak_bytes(
        lambda: retrieval_metrics(embeddings, labels, distance=distance, memory_budget=budget, num_queries=300)
    )
    least = 32 * (8 * 4000 + ranking.MEMBER_BYTES * 4000 // num_classes)  # no block has fewer rows
    assert peak < max(budget, least) + 4 * embeddings.numel() + 2**20


@pytest.mark.parametrize(("dim", "share"), [(256, 0.6), (64, 1.0)])
@pytest.mark.usefixtures("small_rooms")
def test_half_of_the_products_are_enough_where_a_quarter_of_the_matrix_fits(dim, share):
    embeddings, labels = embedding_space(num_items=2000, dim=dim, num_classes=40)
    shapes = []

    class Shapes(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            shapes.extend([result.shape] if func._schema.name == "aten::mm" else [])
            return result

    def run():
        retrieval_metrics(embeddings, labels, metrics=NEIGHBOR_METRICS, memory_budget=2**23)

    with Shapes():
        run()
    assert sum(map(math.prod, shapes)) <= share * 2000**2
    assert peak_bytes(run) < 2**23 + 4 * embeddings.numel() + 2**20


@pytest.mark.parametrize(
    ("dim", "metrics"),
    [(24, NEIGHBOR_METRICS), (256, NEIGHBOR_METRICS), (24, None)],
    ids=["rows", "mirrored", "counting"],
)
@pytest.mark.parametrize("least", [0, ranking.LEAST_SHARED])
def test_several_threads_give_the_same_bytes_and_leave_torch_its_threads(dim, metrics, least, monkeypatch):
    monkeypatch.setattr(ranking, "LEAST_SHARED", least)
    embeddings, labels = embedding_space(num_items=700, dim=dim)

    def scores():
        found = retrieval_metrics(embeddings, labels, metrics=metrics, per_query=True, memory_budget=2**23)
        return [each.numpy().tobytes() for each in found.values()]

    expected, before = scores(), torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert scores() == expected
        with ThreadPoolExecutor(1) as pool:
            assert [torch.get_num_threads(), pool.submit(torch.get_num_threads).result()] == [3, 3]
    finally:
        torch.set_num_threads(before)
