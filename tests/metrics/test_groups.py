"""Groups, whose items leave the query's gallery, label sets, and hierarchies of classes, against sorting and a loop."""

from pathlib import Path

import numpy as np
import pytest
import torch
from by_sorting import cosines, ranked, scores_by_sorting
from own_images import own_images
from pretended_gpu import any_device
from small_fit import small_learner, small_trainer
from torch import Tensor

from levelfield.data import MetricDataModule
from levelfield.data.datasets import ImageTable
from levelfield.data.transforms import ImageTransforms
from levelfield.metrics import RetrievalMetrics, hierarchical_precision_at_r, retrieval_metrics
from levelfield.training.embed import embed

METRICS = ("map_at_r", "r_precision", "precision_at_1", "recall_at_2", "map", "mrr", "ndcg_at_5")
device = any_device


def drawn(number: int, seed: int, sets: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings, labels or sets of none to some of six labels, and groups."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 12, (number,), generator=generator)
    if sets:
        labels = torch.rand(number, 6, generator=generator) < 0.2
    groups = torch.randint(0, 3, (number,), generator=generator)
    return torch.randn(number, 8, generator=generator), labels, groups


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(("sets", "grouped"), [(False, True), (True, True), (True, False)])
def test_scores_are_those_of_sorting(seed: int, apart: bool, sets: bool, grouped: bool, device: str) -> None:
    queries, labels, groups = drawn(150, seed, sets)
    gallery, of, theirs = drawn(210, seed + 10, sets) if apart else (queries, labels, groups)
    groups, theirs = (groups, theirs) if grouped else (None, None)
    others = {"gallery": gallery, "gallery_labels": of, "gallery_groups": theirs} if apart else {}
    given = {"embeddings": queries, "labels": labels, "groups": groups, **others}
    there = {name: None if each is None else each.to(device) for name, each in given.items()}
    found = retrieval_metrics(**there, metrics=METRICS, per_query=True, memory_budget=2**15 * (1 + seed))
    both = (groups, theirs) if grouped else None
    expected = scores_by_sorting(cosines(queries, gallery), labels, of if apart else None, both, per_query=True)
    for name in METRICS:
        np.testing.assert_allclose(found[name].cpu().numpy(), expected[name], rtol=1e-12, err_msg=name)
    assert int(found["num_skipped"]) == expected["mrr"].isnan().sum()
    if not apart and grouped and not sets:
        without = retrieval_metrics(queries, labels, metrics=METRICS, groups=torch.arange(len(labels)))
        assert without == retrieval_metrics(queries, labels, metrics=METRICS), "each alone is left out by itself"


@pytest.mark.parametrize("roles", [False, True])
def test_the_accumulated_metric_takes_groups_by_index(roles: bool) -> None:
    embeddings, labels, groups = drawn(120, 5)
    by_index = np.zeros(400, dtype=np.int64)
    index = torch.randperm(400, generator=torch.Generator().manual_seed(1))[:120]
    by_index[index] = groups
    asks = np.zeros(400, dtype=bool)
    asks[index[:50]] = True
    metric = RetrievalMetrics(METRICS, is_query=asks if roles else None, groups=by_index)
    for part in torch.randperm(120).split(32):
        metric.update(embeddings[part], labels[part], index[part])
    query, gallery = slice(0, 50 if roles else 120), slice(50, None)
    theirs = {"gallery": embeddings[gallery], "gallery_labels": labels[gallery], "gallery_groups": groups[gallery]}
    mine = embeddings[query], labels[query]
    expected = retrieval_metrics(*mine, groups=groups[query], metrics=METRICS, **(theirs if roles else {}))
    assert metric.compute() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("roles", [False, True])
def test_validation_and_test_leave_the_query_s_group_out(roles: bool, tmp_path: Path, quiet: None) -> None:
    """Of two cameras with two pictures of each class. With roles, a test looks for each first picture in the others."""
    rows = (table := own_images(tmp_path)).read_text().splitlines()[1:]
    for number, row in enumerate(rows):
        half = "train," if number < 32 else "test,gallery" if number % 4 else "test,query"
        rows[number] = f"{row},{number % 4 // 2}" + f",{half}" * roles
    table.write_text("\n".join(["path,label,group" + ",split,role" * roles, *rows]) + "\n")
    data = MetricDataModule(ImageTable(table), transforms=ImageTransforms(crop_size=16, resize=16), num_folds=2)
    learner, trainer = small_learner(embedding_size=8), small_trainer(default_root_dir=tmp_path)
    (validated,), (tested,) = trainer.validate(learner, data, verbose=False), trainer.test(learner, data, verbose=False)
    for subset, score in ((data.val_subset, validated["val/map_at_r"]), (data.test_subset, tested["test/map_at_r"])):
        embeddings, labels, _ = embed(learner, data.eval_dataloader(subset, divided=False))
        groups = torch.from_numpy(subset.index.groups)
        given = {"embeddings": embeddings, "labels": labels, "groups": groups}
        if roles and subset is data.test_subset:
            asks = torch.arange(len(labels)) % 4 == 0
            others = {"gallery": embeddings[~asks], "gallery_labels": labels[~asks], "gallery_groups": groups[~asks]}
            given = {name: each[asks] for name, each in given.items()} | others
        assert score == pytest.approx(retrieval_metrics(**given)["map_at_r"], rel=1e-5)
        assert score != pytest.approx(retrieval_metrics(embeddings, labels)["map_at_r"], rel=1e-3)


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
