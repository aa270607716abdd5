"""Features are computed once, whole or absent; each setting of an evaluated image has its own."""

from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import torch

from levelfield.data import Glyphs, ImageTransforms
from levelfield.data.features import features_of
from levelfield.data.loaders import ClassSubset, loader

TRANSFORMS = ImageTransforms(crop_size=8, resize=8)
DATASET = Glyphs(num_classes=4, image_size=8)
SAMPLES = len(DATASET.read_index().keys)
EXPECTED = torch.arange(SAMPLES * 5.0).reshape(SAMPLES, 5)


class Counted:
    """Numbers as features, and the samples of each batch."""

    identity = MappingProxyType({"trunk": "numbers"})

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, batches: Iterable[torch.Tensor]) -> Iterator[np.ndarray]:
        for batch in batches:
            first = sum(self.asked)
            self.asked.append(len(batch))
            yield EXPECTED[first : first + len(batch)].numpy()


def features(extractor: Counted, batch_size: int = 7, transforms: ImageTransforms = TRANSFORMS) -> torch.Tensor:
    samples = ClassSubset(DATASET, DATASET.read_index(), transforms.evaluate())
    return features_of(loader(samples, 0, False, batch_size=batch_size), "content", transforms, extractor)


def test_they_are_computed_once_and_change_no_later_draw(cache: Path):
    torch.manual_seed(3)
    later, made, again = torch.rand(4), Counted(), Counted()
    for extractor in (made, again):
        torch.manual_seed(3)
        assert torch.equal(features(extractor), EXPECTED)
        assert torch.equal(torch.rand(4), later)
    assert (sum(made.asked), again.asked) == (SAMPLES, [])
    features(Counted(), batch_size=9)
    assert len([*cache.glob("features/*.f32")]) == 2, "the batch affects the rounding"


@pytest.mark.parametrize("damage", [lambda content: content[:-4], lambda content: b"no array" * 100])
def test_a_damaged_file_is_computed_again(damage, cache: Path):
    features(Counted())
    (file,) = cache.glob("features/*.f32")
    content = file.read_bytes()
    file.unlink()  # what is mapped stays
    file.write_bytes(damage(content))
    assert torch.equal(features(again := Counted()), EXPECTED)
    assert again.asked
    assert file.read_bytes() == content


def test_what_changes_an_evaluated_image_has_features_of_its_own_and_augmentation_has_not(cache: Path) -> None:
    augmentation = {"scale": (0.5, 1.0), "ratio": (1.0, 1.0), "horizontal_flip": False, "random_crop": True}
    evaluated = {"crop_size": 6, "resize": 9, "eval_resize": 10, "square": True, "interpolation": "bicubic"}
    assert {each.name for each in fields(ImageTransforms)} == {*augmentation, *evaluated}
    for name, value in augmentation.items():
        features(Counted(), transforms=replace(TRANSFORMS, **{name: value}))
        assert len([*cache.glob("features/*.f32")]) == 1, name
    for number, (name, value) in enumerate(evaluated.items(), start=2):
        features(Counted(), transforms=replace(TRANSFORMS, **{name: value}))
        assert len([*cache.glob("features/*.f32")]) == number, name
