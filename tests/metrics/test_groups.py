"""Groups: items with the query's label and group leave its gallery, against a plain loop."""

from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.pytorch import Trainer
from own_images import own_images
from torch import Tensor

from levelfield.data import MetricDataModule
from levelfield.data.datasets import ImageTable
from levelfield.data.transforms import ImageTransforms
from levelfield.losses import ContrastiveLoss
from levelfield.metrics import RetrievalMetrics, retrieval_metrics
from levelfield.models import TimmTrunk
from levelfield.training.embed import embed
from levelfield.training.learner import MetricLearner

METRICS = ("map_at_r", "r_precision", "precision_at_1", "recall_at_2", "map", "mrr")


def plain(queries: Tensor, labels: Tensor, groups: Tensor, gallery: Tensor, of: Tensor, theirs: Tensor) -> dict:
    """Each query's scores by its definition; NaN without a match."""
    found = {name: [] for name in METRICS}
    similar = torch.nn.functional.normalize(queries) @ torch.nn.functional.normalize(gallery).T
    for row, label, group in zip(similar, labels, groups, strict=True):
        stays = ~((of == label) & (theirs == group))
        order = row[stays].argsort(descending=True)
        hits = (of[stays][order] == label).double()
        r = int(hits.sum())
        precision = hits.cumsum(0) / torch.arange(1, len(hits) + 1)
        first = int(hits.argmax()) + 1 if r else 0
        scores = (
            *((precision[:r] * hits[:r]).sum() / r, hits[:r].mean(), hits[:1].sum(), hits[:2].amax()),
            *((precision * hits).sum() / r, 1 / first if r else 0),
        )
        for name, value in zip(METRICS, scores, strict=True):
            found[name].append(float(value) if r else float("nan"))
    return found


def drawn(number: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 12, (number,), generator=generator)
    groups = torch.randint(0, 3, (number,), generator=generator)
    return torch.randn(number, 8, generator=generator), labels, groups


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("apart", [False, True])
def test_scores_with_groups_are_those_of_a_plain_loop(seed: int, apart: bool) -> None:
    queries, labels, groups = drawn(150, seed)
    gallery, of, theirs = drawn(210, seed + 10) if apart else (queries, labels, groups)
    sets = {"gallery": gallery, "gallery_labels": of, "gallery_groups": theirs} if apart else {}
    found = retrieval_metrics(queries, labels, metrics=METRICS, per_query=True, groups=groups, **sets)
    expected = plain(queries, labels, groups, gallery, of, theirs)
    for name in METRICS:
        np.testing.assert_allclose(found[name].numpy(), expected[name], rtol=1e-12, err_msg=name)
    assert int(found["num_skipped"]) == sum(np.isnan(expected["mrr"]))
    if not apart:
        without = retrieval_metrics(queries, labels, metrics=METRICS, groups=torch.arange(len(labels)))
        assert without == retrieval_metrics(queries, labels, metrics=METRICS), "each alone is left out by itself"


def test_a_query_whose_matches_are_all_of_its_group_is_skipped() -> None:
    embeddings, labels = torch.randn(6, 4), torch.tensor([0, 0, 1, 1, 2, 2])
    found = retrieval_metrics(embeddings, labels, groups=torch.tensor([0, 0, 0, 1, 0, 1]))
    assert found["num_skipped"] == 2


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


def test_groups_that_do_not_fit_are_one_line() -> None:
    embeddings, labels, groups = drawn(20, 0)
    with pytest.raises(ValueError, match="groups must hold 20 integers"):
        retrieval_metrics(embeddings, labels, groups=groups[:3])
    with pytest.raises(ValueError, match="gallery_groups must hold 20 integers"):
        retrieval_metrics(embeddings, labels, embeddings, labels, groups=groups)


def test_validation_and_test_leave_the_query_s_group_out(tmp_path: Path, quiet: None) -> None:
    head, *rows = own_images(tmp_path).read_text().splitlines()
    rows = [f"{row},{number % 4 // 2}" for number, row in enumerate(rows)]  # two cameras, two pictures of each
    (tmp_path / "table.csv").write_text("\n".join([f"{head},group", *rows]) + "\n")
    sizes = ImageTransforms(crop_size=16, resize=16)
    data = MetricDataModule(ImageTable(tmp_path / "table.csv"), transforms=sizes, num_folds=2)
    learner = MetricLearner(TimmTrunk("test_resnet", weights=None), ContrastiveLoss(), embedding_size=8)
    settings = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(accelerator="cpu", default_root_dir=tmp_path, **settings)
    (validated,), (tested,) = trainer.validate(learner, data, verbose=False), trainer.test(learner, data, verbose=False)
    for subset, score in ((data.val_subset, validated["val/map_at_r"]), (data.test_subset, tested["test/map_at_r"])):
        embedded = embed(learner, data.eval_dataloader(subset, divided=False))
        groups = torch.from_numpy(subset.index.groups)
        given = embedded.embeddings, embedded.labels
        assert score == pytest.approx(retrieval_metrics(*given, groups=groups)["map_at_r"], rel=1e-5)
        assert score != pytest.approx(retrieval_metrics(*given)["map_at_r"], rel=1e-3)
