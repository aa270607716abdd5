"""Every metric on each device against sorting in float64, or against the CPU where that is checked elsewhere."""

from collections import Counter

import pytest
import torch
from by_sorting import cosine_scores, expected
from pretended_gpu import any_device, pretended_gpu
from test_retrieval import NAMES, random_case
from torch.utils._python_dispatch import TorchDispatchMode

from levelfield.metrics import (
    PCA,
    RetrievalMetrics,
    clustering_metrics,
    embedding_health,
    hierarchical_precision_at_r,
    retrieval_metrics,
    verification_metrics,
)
from levelfield.metrics.ranking import largest_values

device = any_device


def there(case: tuple[torch.Tensor, ...], device: str) -> list[torch.Tensor]:
    return [part.to(device) for part in case]


def space(size: int, dim: int = 24, classes: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (size,), generator=generator)
    centres = torch.randn(classes, dim, generator=generator)
    return centres[labels] + 2 * torch.randn(size, dim, generator=generator), labels


@pytest.mark.parametrize("seed", range(6))
def test_every_score_equals_sorting_in_float64(seed, device):
    case = random_case(seed)
    result = retrieval_metrics(*there(case, device), metrics=NAMES)
    assert result == expected(cosine_scores(*case), result)


@pytest.mark.parametrize(
    ("distance", "metrics"),
    [
        ("cosine", None),
        ("cosine", ("map_at_r", "recall_at_4")),
        ("euclidean", ("map_at_r", "recall_at_4")),
        ("hamming", None),
        ("poincare", ("map_at_r", "recall_at_4")),
    ],
)
def test_blocks_of_a_larger_set_score_as_on_the_cpu(distance, metrics, device):
    case = space(500)
    settings = {"metrics": metrics, "distance": distance, "memory_budget": 2**20}
    expected = retrieval_metrics(*case, metrics=metrics, distance=distance)
    assert retrieval_metrics(*there(case, device), **settings) == pytest.approx(expected, abs=1e-5)
    per_query = retrieval_metrics(*there(case, device), per_query=True, **settings)
    assert all(scores.device.type == device for name, scores in per_query.items() if name != "num_skipped")


@pytest.mark.parametrize("distance", ["cosine", "euclidean", "hamming", "poincare"])
def test_batches_add_up_to_the_whole(distance, device):
    embeddings, labels = space(200)
    metric = RetrievalMetrics(metrics=("map_at_r", "map"), num_samples=200, distance=distance).to(device)
    for rows in torch.arange(200).split(64):
        metric.update(embeddings[rows].to(device), labels[rows].to(device), rows)
    expected = retrieval_metrics(embeddings, labels, metrics=("map_at_r", "map"), distance=distance)
    assert metric.compute() == pytest.approx(expected, abs=1e-6)


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
    assert largest_values(values.to(device), count).tolist() == values.sort(dim=1).values[:, -count:].tolist()


class Operators(TorchDispatchMode):
    """Counts operators, and those for which the CPU waits."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names[func._schema.name.removeprefix("aten::")] += 1
        return func(*args, **(kwargs or {}))

    @property
    def waits(self) -> int:
        return self.names["_local_scalar_dense"] + self.names["nonzero"]


@pytest.mark.parametrize("dim", [24, 256])
def test_a_gpu_selects_and_waits_once_for_each_of_few_blocks(dim, monkeypatch):
    case = space(800, dim, classes=100)
    with pretended_gpu() as there:
        embeddings, labels = (each.to(there) for each in case)

        def counted(free: int, *metrics: str) -> Operators:
            monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (free, 2**40))
            with Operators() as operators:
                retrieval_metrics(embeddings, labels, metrics=metrics)
            return operators

        many, few = (counted(free, "map_at_r") for free in (2**22, 2**30))
    blocks, few_blocks = (each.names["searchsorted"] - few.names["searchsorted"] + 1 for each in (many, few))
    assert few_blocks == 1 < blocks
    assert many.waits - few.waits <= blocks - few_blocks
    assert few.waits <= 12
    assert few.names["topk"] > 0


def test_queries_and_gallery_stay_apart(device):
    embeddings, labels = space(200)
    asks = torch.arange(200) % 3 == 0
    metric = RetrievalMetrics(metrics=("map_at_r",), is_query=asks.numpy()).to(device)
    metric.update(embeddings.to(device), labels.to(device), torch.arange(200, device=device))
    parts = (embeddings[asks], labels[asks], embeddings[~asks], labels[~asks])
    assert metric.compute() == pytest.approx(retrieval_metrics(*parts, metrics=("map_at_r",)), abs=1e-6)


def test_clusters_health_and_components_are_those_of_the_cpu(device):
    embeddings, labels = space(300)
    case = (embeddings, labels)
    clustered = clustering_metrics(*there(case, device), method="exact", metrics=("nmi", "nmi_geometric", "ami", "f1"))
    assert clustered == clustering_metrics(*case, method="exact", metrics=("nmi", "nmi_geometric", "ami", "f1"))
    health, of_cpu = embedding_health(*there(case, device)), embedding_health(*case)
    for name in ("intra_class_similarity", "inter_class_similarity", "effective_rank"):
        assert getattr(health, name) == pytest.approx(getattr(of_cpu, name), rel=1e-6)
    torch.testing.assert_close(health.spectrum.cpu(), of_cpu.spectrum)
    reduced = PCA(5).fit(case[0].to(device)).transform(case[0].to(device))
    assert reduced.device.type == device
    torch.testing.assert_close(reduced.cpu(), PCA(5).fit(case[0]).transform(case[0]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("distance", "with_gallery"), [("cosine", False), ("euclidean", True)])
def test_pairs_and_coarse_classes_are_judged_as_on_the_cpu(distance, with_gallery, device):
    embeddings, labels = space(120, classes=20)
    sets = [embeddings[:50], labels[:50], embeddings[50:], labels[50:]] if with_gallery else [embeddings, labels]
    expected = verification_metrics(*sets, distance=distance)
    found = verification_metrics(*there(tuple(sets), device), distance=distance)
    assert found.scores == pytest.approx(expected.scores, abs=1e-5)
    with_coarse = [part for rows, of in zip(sets[::2], sets[1::2], strict=True) for part in (rows, of, of // 4)]
    ranked = hierarchical_precision_at_r(*there(tuple(with_coarse), device), distance=distance)
    assert ranked.device.type == device
    torch.testing.assert_close(
        ranked.cpu(), hierarchical_precision_at_r(*with_coarse, distance=distance), equal_nan=True
    )
