"""Labels that count from 0, and randomness that depends on the draw alone."""

import pickle
import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from levelfield.data.datasets.glyphs import Glyphs
from levelfield.data.samplers import Draw, MPerClassBatchSampler
from levelfield.data.subset import ClassSubset
from levelfield.data.transforms import ImageTransforms

TRANSFORMS = ImageTransforms(crop_size=32, resize=32)


@pytest.fixture
def subset() -> ClassSubset:
    glyphs = Glyphs(num_classes=8, image_size=32)
    index = glyphs.read_index()
    return ClassSubset(glyphs, index.select(np.isin(index.labels, [2, 5, 6])), TRANSFORMS.train(), seed=7)


def test_labels_count_from_zero_in_class_order(subset: ClassSubset) -> None:
    assert subset.classes == (2, 5, 6)
    assert subset.class_names == ("U+0043 C", "U+0046 F", "U+0047 G")
    assert len(subset) == 3 * 16
    assert subset.labels.tolist() == [0] * 16 + [1] * 16 + [2] * 16
    sample, label, index = subset[Draw(20, 0)]
    assert (sample.shape, label, index) == ((3, 32, 32), 1, 84)


def test_a_view_depends_on_seed_and_draw_number_only(subset: ClassSubset) -> None:
    first = subset[Draw(3, 11)][0]
    torch.manual_seed(99)
    later = torch.rand(2)
    torch.manual_seed(99)
    subset[Draw(5, 12)]
    assert torch.equal(torch.rand(2), later)
    assert torch.equal(subset[Draw(3, 11)][0], first)
    assert not torch.equal(subset[Draw(3, 12)][0], first)
    reseeded = ClassSubset(subset.dataset, subset.index, subset.transform, seed=8)
    assert not torch.equal(reseeded[Draw(3, 11)][0], first)


def test_evaluation_draws_nothing(subset: ClassSubset, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = ClassSubset(subset.dataset, subset.index, TRANSFORMS.evaluate(), seed=7)
    expected = [TRANSFORMS.evaluate()(subset.dataset.load(key)) for key in subset.index.keys[:3]]
    monkeypatch.setattr(torch.random, "fork_rng", None)  # which takes a tenth of the time that a small picture takes
    assert all(torch.equal(plain[number][0], image) for number, image in enumerate(expected))
    with pytest.raises(TypeError):
        subset[0]


def test_a_copy_for_a_worker_gives_the_same_views(subset: ClassSubset) -> None:
    copied = pickle.loads(pickle.dumps(subset))  # as macOS and Windows start workers
    for batch in MPerClassBatchSampler(subset.labels, 6, 2, num_batches=2):
        for draw in batch:
            assert torch.equal(copied[draw][0], subset[draw][0])


def draw_from_all(image: object) -> torch.Tensor:
    return torch.tensor([torch.rand(()), np.random.rand(), np.random.randn(), random.random()], dtype=torch.float64)


@pytest.mark.processes
def test_draws_of_an_own_transform_depend_on_no_loader_process(subset: ClassSubset) -> None:
    own = ClassSubset(subset.dataset, subset.index, draw_from_all, seed=7)
    states = np.random.get_state()[1].tolist(), random.getstate()
    alone, one, reseeded = (
        torch.cat([batch[0] for batch in DataLoader(samples, batch_size=16, num_workers=workers)])
        for samples, workers in ((own, 0), (own, 1), (ClassSubset(subset.dataset, subset.index, draw_from_all), 0))
    )
    assert torch.equal(alone, one)
    assert len(alone.unique()) == alone.numel() == 4 * 48
    assert (alone != reseeded).all()
    assert own[5][0].tolist() == alone[5].tolist()
    assert np.random.get_state()[1].tolist() == states[0]
    assert random.getstate() == states[1]
