"""Every way of ranking gives the scores of float64, the same bytes, and chance where embeddings tell nothing."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate

import pytest
import torch
from by_sorting import expected, ranked, scores_by_sorting
from matmul_precision import COARSE, Products, coarse_on_the_cpu, made, older, precisions
from pretended_gpu import any_device, pretended_gpu
from torch.nn.functional import normalize
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from levelfield.core.numerics import CLIP_RADIUS, in_ball
from levelfield.losses.hyperbolic_cross_entropy import poincare_distances
from levelfield.metrics import RetrievalMetrics, distances, pack_bits, ranking, retrieval_metrics
from levelfield.metrics.distances import DISTANCES
from levelfield.metrics.nearest import nearest

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


@pytest.mark.parametrize(
    ("distance", "coarse"),
    [
        *(("cosine", coarse) for coarse in COARSE.values()),
        *((distance, coarse_on_the_cpu) for distance in ("euclidean", "hamming", "poincare")),
    ],
)
def test_products_are_true_float32_under_autocast_and_by_whichever_name_torch_was_told_otherwise(distance, coarse):
    embeddings, labels = embedding_space(num_items=600)

    def scores():
        ways = (
            {"metrics": None, "memory_budget": NO_MEMORY},
            {"metrics": NEIGHBOR_METRICS, "memory_budget": SOME_MEMORY},
        )
        return [retrieval_metrics(embeddings, labels, distance=distance, **way) for way in ways]

    expected = scores()
    with torch.autocast("cpu", torch.bfloat16):
        assert scores() == expected
    with made(coarse):
        before = precisions(), older()
        with Products() as products:
            assert scores() == expected
        assert set(products.seen) == {("ieee", "ieee")}
        assert (precisions(), older()) == before


class Operators(TorchDispatchMode):
    """Counts operators, those for which the CPU waits, and the values that products compute."""

    def __init__(self):
        super().__init__()
        self.names, self.products = Counter(), 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name, result = func._schema.name.removeprefix("aten::"), func(*args, **(kwargs or {}))
        self.names[name] += 1
        self.products += result.numel() if name == "mm" else 0
        return result

    @property
    def waits(self):
        return self.names["_local_scalar_dense"] + self.names["nonzero"]


@pytest.mark.parametrize("dim", [24, 256])
def test_a_gpu_selects_and_waits_once_for_each_of_few_blocks(dim, monkeypatch):
    case = embedding_space(800, dim, num_classes=100)
    with pretended_gpu() as there:
        embeddings, labels = (each.to(there) for each in case)

        def counted(free):
            monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (free, 2**40))
            with Operators() as operators:
                retrieval_metrics(embeddings, labels, metrics=("map_at_r",))
            return operators

        many, few = (counted(free) for free in (2**22, 2**30))
    blocks, few_blocks = (each.names["searchsorted"] - few.names["searchsorted"] + 1 for each in (many, few))
    assert few_blocks == 1 < blocks
    assert many.waits - few.waits <= blocks - few_blocks
    assert few.waits <= 12
    assert few.names["topk"] > 0


def peak_bytes(run):
    """The most that torch's allocator has handed out at once; numpy's copies are of one tile."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as traced:
        run()
    events = [event for event in traced.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())))


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


@pytest.mark.parametrize("dim", [256, 64])
@pytest.mark.usefixtures("small_rooms")
def test_half_of_the_products_are_enough_for_a_set_against_itself(dim):
    embeddings, labels = torch.randn(2000, dim, generator=torch.Generator().manual_seed(0)), torch.arange(2000) % 200

    run = partial(retrieval_metrics, embeddings, labels, metrics=NEIGHBOR_METRICS, memory_budget=2**21)
    with Operators() as operators:
        run()
    assert operators.products <= 0.57 * 2000**2
    assert peak_bytes(run) < 2**21 + 4 * embeddings.numel() + 2**20


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


@pytest.mark.parametrize("distance", DISTANCES)
def test_some_of_the_items_ask_for_the_others(distance):
    prepare, similarity = DISTANCES[distance]
    points = torch.randn(70, 5, generator=torch.Generator().manual_seed(0))
    points[60:] = points[:10]
    prepared, queries = prepare(points), torch.tensor([64, 3, 41])
    found, items = nearest(prepared[queries], prepared, 100, queries, similarity, memory_budget=1)
    values = similarity(prepared, prepared)
    assert torch.equal(items, ranked(values, excludes_self=True)[queries])
    assert torch.equal(found, values[queries].gather(1, items))
    _, apart = nearest(prepared[queries], prepared, 100, None, similarity)
    _, alone = nearest(prepared[queries[1:2]], prepared, 100, None, similarity)
    assert apart.shape == (3, 70)
    assert apart[1].tolist() == alone[0].tolist()
    assert nearest(prepared[:0], prepared, 4, None, similarity)[1].shape == (0, 4)


@pytest.mark.parametrize("scale", [1e200, 1e30, 1e6, 2])
def test_poincare_distances_are_those_of_the_loss_and_rank_like_cosines_beyond_the_clipping_radius(scale):
    embeddings, labels = embedding_space(150, 6, num_classes=20)
    prepare, similarity = DISTANCES["poincare"]
    points, in_loss = prepare(embeddings), in_ball(embeddings.double())
    expected = -poincare_distances(in_loss, in_loss).float()
    torch.testing.assert_close(similarity(points, points), expected, rtol=1e-5, atol=1e-5)
    far = normalize(embeddings.double()) * max(scale, 2 * CLIP_RADIUS)
    by_cosine = retrieval_metrics(far, labels)
    assert retrieval_metrics(far, labels, distance="poincare") == pytest.approx(by_cosine, abs=1e-9)


CHANCE_METRICS = ("map_at_r", "precision_at_1", "r_precision")
CLASSES = {
    "even": [10] * 50,
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


TELLS_NOTHING = {  # of their labels
    "constant": lambda size: torch.ones(size, 8),
    "one of three rows": lambda size: torch.eye(3)[two_bits(size).sum(1).abs().long().clamp(max=2)],
    "two bits": two_bits,
}


@pytest.mark.parametrize(
    ("classes", "told", "distance"),
    [
        *((classes, "constant", "cosine") for classes in CLASSES),
        ("uneven", "constant", "euclidean"),
        *((classes, "one of three rows", "cosine") for classes in ("uneven", "many")),
        *((classes, "two bits", "hamming") for classes in ("few", "many")),
    ],
)
def test_embeddings_that_tell_nothing_score_chance(classes, told, distance):
    """In whatever order the labels come: shuffled, sorted, backwards, and dealt in turn."""
    sizes = CLASSES[classes]
    embeddings, expected = TELLS_NOTHING[told](sum(sizes)), chance(sizes)
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


def test_positions_are_those_that_the_hash_has_published():
    """MurmurHash3's hashes of nothing with the seeds 0 and 1, and the positions of 2^16 items, which all differ."""
    positions, starts = ranking.tie_positions(0, 2**16, True, torch.device("cpu"))
    assert positions[:2].tolist() == [0, 0x514E28B7]
    assert len(positions.unique()) == len(positions)
    assert 0 <= int(positions.min()) < int(positions.max()) < 2**32
    assert torch.equal(starts, positions)


def test_the_metric_ranks_equal_similarities_by_the_order_of_the_data_set():
    """Whichever numbers the samples have, and in whichever order the batches bring them."""
    embeddings, labels = two_bits(300), torch.arange(300) // 6
    metric = RetrievalMetrics(CHANCE_METRICS, num_samples=300, distance="hamming")
    for batch in torch.randperm(300, generator=torch.Generator().manual_seed(5)).split(70):
        metric.update(embeddings[batch], labels[batch], 10 * batch + 4)
    found = retrieval_metrics(embeddings, labels, metrics=CHANCE_METRICS, distance="hamming")
    assert metric.compute() == pytest.approx(found, abs=1e-12)
