"""Every way of ranking gives the scores of float64, the same bytes, and chance where embeddings tell nothing."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from by_sorting import expected, scores_by_sorting
from matmul_precision import Products, coarse_on_the_cpu, made
from peak_memory import peak_bytes
from pretended_gpu import any_device
from torch.nn.functional import normalize

from levelfield.core.numerics import CLIP_RADIUS, in_ball
from levelfield.losses.hyperbolic_cross_entropy import poincare_distances
from levelfield.metrics import distances, pack_bits, ranking, retrieval_metrics
from levelfield.metrics.distances import DISTANCES

device = any_device
NEIGHBOR_METRICS = ("map_at_r", "r_precision", "precision_at_1", "recall", "map_at_5")
ALL = (*NEIGHBOR_METRICS, "map", "mrr")
NO_MEMORY, SOME_MEMORY = 1, 2**20
SIMILARITIES = {
    "cosine": lambda one, other: normalize(one, dim=1) @ normalize(other, dim=1).T,
    "euclidean": lambda one, other: -(one[:, None] - other).square().sum(2),
    "hamming": lambda one, other: -((one > 0)[:, None] != (other > 0)).sum(2),
    "poincare": lambda one, other: -poincare_distances(in_ball(one), in_ball(other)),
}


def embedding_space(num_items=900, dim=21, num_classes=300, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, num_classes, (num_items,), generator=generator)
    centres = torch.randn(num_classes, dim, generator=generator)
    embeddings = 0.7 * centres[labels] + torch.randn(num_items, dim, generator=generator)
    # Of one label: on some processors the cosines with equal items differ in the last bit, and either may be first.
    embeddings[100:150], labels[100:150] = embeddings[:50], labels[:50]
    return embeddings, labels


def with_ties():
    """Cosines that are exact in float32, every one of them shared by many items of several classes."""
    embeddings, labels = embedding_space(dim=16)
    return embeddings.sign(), labels


def with_near_ties():
    """Every third item is another one moved by a millionth, or not at all, mostly of another class."""
    embeddings, labels = embedding_space(dim=64)
    moves = torch.randint(0, 3, (300, 1), generator=torch.Generator().manual_seed(4)) * 4e-6
    embeddings[:-1:3] = (embeddings[1::3] + moves * embeddings[2::3])[: len(embeddings[:-1:3])]
    return embeddings, labels


def in_order():
    """Sorted classes that are easy to tell apart, and whole blocks of items without a match."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.cat([torch.arange(600) // 4, torch.arange(1000, 1300)])
    return torch.randn(1300, 21, generator=generator)[labels] + 0.3 * torch.randn(900, 21, generator=generator), labels


def far_from_zero():
    embeddings, labels = embedding_space()
    return embeddings + 50, labels


def gallery_apart():
    return *embedding_space(), *embedding_space(1400, seed=1, num_classes=250)


CASES = (embedding_space, with_ties, with_near_ties, in_order)


@pytest.mark.parametrize(
    ("distance", "case", "metrics"),
    [
        ("cosine", embedding_space, ALL),
        ("cosine", in_order, NEIGHBOR_METRICS),
        ("cosine", with_ties, NEIGHBOR_METRICS),
        ("euclidean", embedding_space, NEIGHBOR_METRICS),
        ("euclidean", far_from_zero, ALL),
        ("hamming", embedding_space, NEIGHBOR_METRICS),
        ("hamming", with_ties, NEIGHBOR_METRICS),
        ("poincare", embedding_space, NEIGHBOR_METRICS),
        ("cosine", gallery_apart, NEIGHBOR_METRICS),
        ("cosine", gallery_apart, ALL),
    ],
)
def test_every_way_equals_float64(distance, case, metrics, device):
    sets = case()
    similarities = SIMILARITIES[distance](sets[0].double(), sets[-2].double())
    by_sorting = scores_by_sorting(similarities, sets[1], *sets[3:])
    settings, there = {"metrics": metrics, "distance": distance}, [each.to(device) for each in sets]
    for budget in (NO_MEMORY, SOME_MEMORY, 2**30) if device == "cpu" else (SOME_MEMORY,):
        result = retrieval_metrics(*there, **settings, memory_budget=budget)
        assert result == expected(by_sorting, result)
    if distance == "hamming":
        packed = pack_bits(there[0])
        assert (packed.shape, packed.dtype) == ((900, -(-sets[0].shape[1] // 8)), torch.uint8)
        assert retrieval_metrics(packed, there[1], **settings, memory_budget=budget) == result
    per_query = retrieval_metrics(*there, **settings, per_query=True, memory_budget=SOME_MEMORY)
    assert all(scores.device.type == device for name, scores in per_query.items() if name != "num_skipped")


def bytes_of_scores(embeddings, labels, metrics=NEIGHBOR_METRICS, distance="cosine"):
    settings = {"metrics": metrics, "distance": distance, "memory_budget": SOME_MEMORY}
    found = retrieval_metrics(embeddings, labels, per_query=True, **settings)
    return {name: values.numpy().tobytes() for name, values in found.items()}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("distance", DISTANCES)
def test_every_way_gives_the_same_bytes(case, distance, monkeypatch):
    by_halves = bytes_of_scores(*case(), distance=distance)
    monkeypatch.setattr(ranking, "LEAST_HALVED", 10**9)
    assert bytes_of_scores(*case(), distance=distance) == by_halves


@pytest.mark.parametrize("distance", ["cosine", "euclidean", "hamming"])
@pytest.mark.parametrize(
    ("dtype", "exponents"), [("float32", (-116, -46, 63, 120)), ("float64", (-1000, -100, 133, 1000))]
)
def test_the_scale_of_the_embeddings_changes_nothing(distance, dtype, exponents):
    """By powers of two, which round nothing."""
    embeddings, labels = embedding_space(num_items=300, num_classes=40)

    def scores(embeddings):
        apart = (embeddings[:100], labels[:100], embeddings[100:], labels[100:])
        return [retrieval_metrics(*sets, distance=distance) for sets in ((embeddings, labels), apart)]

    expected = [pytest.approx(each, abs=1e-9) for each in scores(embeddings)]
    for exponent in exponents:
        scaled = embeddings.to(getattr(torch, dtype)) * 2.0**exponent
        assert scores(scaled) == expected
        assert torch.equal(scaled, embeddings.to(scaled.dtype) * 2.0**exponent)


WAYS = [
    {"metrics": None, "memory_budget": NO_MEMORY},
    {"metrics": NEIGHBOR_METRICS, "memory_budget": SOME_MEMORY},
]


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("way", WAYS, ids=["rows", "halves"])
def test_products_are_true_float32_under_autocast_and_whatever_torch_was_told(distance, way):
    score = partial(retrieval_metrics, *embedding_space(num_items=600), distance=distance, **way)
    expected = score()
    with torch.autocast("cpu", torch.bfloat16):
        assert score() == expected
    with made(coarse_on_the_cpu), Products() as products:
        assert score() == expected
    assert set(products.seen) == {("ieee", "ieee")}


@pytest.fixture
def small_rooms(monkeypatch):
    """For ties and tiles, which have memory of their own beside the budget and the copy of the embeddings."""
    monkeypatch.setattr(distances, "TILE", 64)
    monkeypatch.setattr(ranking, "TEMPORARY_VALUES", 2**12)


@pytest.mark.parametrize("case", ["cosine 300", "cosine 300 tied", "cosine 2", "euclidean 300", "hamming 300 tied"])
@pytest.mark.parametrize("budget", [2**22, 2**23])
@pytest.mark.usefixtures("small_rooms")
def test_memory_stays_within_the_budget(case, budget):
    distance, num_classes, *tied = case.split()
    labels = torch.arange(4000) % int(num_classes)
    embeddings = torch.randn(4000, 128, generator=torch.Generator().manual_seed(0))
    embeddings = embeddings[:, :16].sign() if tied else embeddings
    settings = {"distance": distance, "memory_budget": budget, "num_queries": 300}
    peak = peak_bytes(partial(retrieval_metrics, embeddings, labels, **settings))
    least = 32 * (8 * 4000 + ranking.MEMBER_BYTES * 4000 // int(num_classes))  # no block has fewer rows
    assert peak < max(budget, least) + 4 * embeddings.numel() + 2**20


@pytest.mark.parametrize("metrics", [NEIGHBOR_METRICS, None], ids=["halves", "rows"])
@pytest.mark.parametrize("least", [0, ranking.LEAST_SHARED])
def test_several_threads_give_the_same_bytes_and_leave_torch_its_threads(metrics, least, monkeypatch):
    monkeypatch.setattr(ranking, "LEAST_SHARED", least)
    case, before = embedding_space(num_items=700), torch.get_num_threads()
    expected = bytes_of_scores(*case, metrics)
    try:
        torch.set_num_threads(3)
        assert bytes_of_scores(*case, metrics) == expected
        with ThreadPoolExecutor(1) as pool:
            assert [torch.get_num_threads(), pool.submit(torch.get_num_threads).result()] == [3, 3]
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("length", "count"), [(1, 1), (50, 50), (101, 7), (1000, 3), (1000, 1), (997, 200), (270_001, 2)]
)
@pytest.mark.parametrize("numbers", ["all differ", "few", "one", "wide integers"])
def test_the_largest_values_are_the_last_of_a_sort(length, count, numbers, device):
    drawn = torch.randn(70 if length < 2000 else 2, length, generator=torch.Generator().manual_seed(length))
    values = {
        "all differ": drawn,
        "few": drawn.round().index_fill(1, torch.tensor([length // 2]), -torch.inf),
        "one": torch.zeros_like(drawn),
        "wide integers": (drawn * 2**60).long(),
    }[numbers]
    assert ranking.largest_values(values.to(device), count).tolist() == values.sort(dim=1).values[:, -count:].tolist()


def test_keys_order_numbers_of_both_signs_and_zero_has_one_key():
    numbers = torch.tensor([[-2.0, -1.0, -0.0, 0.0, 1e-30, 1.0]])
    keys = ranking.tie_free_keys(numbers, *torch.zeros(2, 1, dtype=torch.long))[0]
    assert (keys.diff() >= 0).all()
    assert (keys.diff() == 0).tolist() == [False, False, True, False, False]


@pytest.mark.parametrize("num_rows", [1, 31, 32, 63, 64, 65, 1000])
def test_blocks_cover_all_rows_and_are_not_small(num_rows):
    """A small last block would multiply matrices of few rows, which some processors round differently."""
    for block in (1, 5, 40, 5000):
        edges = ranking.block_starts(num_rows, block)
        assert [start for start, _ in edges] == [0, *(stop for _, stop in edges[:-1])]
        assert edges[-1][1] == num_rows
        assert min(stop - start for start, stop in edges) >= min(num_rows, 32)


@pytest.mark.parametrize("scale", [1e200, 1e30, 1e6, 2])
def test_poincare_distances_rank_like_cosines_beyond_the_clipping_radius(scale):
    embeddings, labels = embedding_space(150, 6, num_classes=20)
    far = normalize(embeddings.double()) * max(scale, 2 * CLIP_RADIUS)
    by_cosine = retrieval_metrics(far, labels)
    assert retrieval_metrics(far, labels, distance="poincare") == pytest.approx(by_cosine, abs=1e-9)


CHANCE_METRICS = ("map_at_r", "precision_at_1", "r_precision")
CLASSES = {
    "uneven": [2 + number**2 // 8 for number in range(20)],
    "few": [300, 200, 100],
    "many": [6] * 150,
}


def chance(sizes):
    """Expected scores over all orders of a query's M others, R of which are of its class.

    E[P@1] = E[R-precision] = R / M
    E[MAP@R] = 1/R sum over k <= R of 1/k R/M (1 + (k - 1) (R - 1) / (M - 1))
    """
    others, precision, average = sum(sizes) - 1, 0.0, 0.0
    for share, r in ((size / sum(sizes), size - 1) for size in sizes):
        precision += share * r / others
        average += share * sum((1 + (k - 1) * (r - 1) / (others - 1)) / k for k in range(1, r + 1)) / others
    return torch.tensor([average, precision, precision])


def two_bits(size):
    return torch.randn(size, 2, generator=torch.Generator().manual_seed(3))


TELLS_NOTHING = [
    *((classes, "cosine") for classes in CLASSES),
    *(("uneven", "euclidean"), ("few", "hamming"), ("many", "hamming")),
]


@pytest.mark.parametrize(("classes", "distance"), TELLS_NOTHING)
def test_embeddings_that_tell_nothing_score_chance(classes, distance):
    """In whatever order the labels come: shuffled, sorted, backwards, and dealt in turn."""
    sizes = CLASSES[classes]
    expected = chance(sizes)
    embeddings = two_bits(sum(sizes)) if distance == "hamming" else torch.ones(sum(sizes), 8)
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    within = torch.cat([torch.arange(size) for size in sizes])

    def scores(labels):
        found = retrieval_metrics(embeddings, labels, metrics=CHANCE_METRICS, distance=distance)
        return torch.tensor([found[name] for name in CHANCE_METRICS])

    generator = torch.Generator().manual_seed(0)
    by_shuffle = torch.stack([scores(labels[torch.randperm(len(labels), generator=generator)]) for _ in range(20)])
    spread = by_shuffle.std(dim=0)
    # As of queries that each have an order of their own.
    assert (spread < 1.5 * (expected / sum(sizes)) ** 0.5).all()
    assert ((by_shuffle.mean(dim=0) - expected).abs() < 4 * spread / 20**0.5).all()
    for arranged in (labels, labels.flip(0), labels[within.argsort(stable=True)]):
        assert ((scores(arranged) - expected).abs() < 4 * spread).all()
