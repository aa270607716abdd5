"""Find samples with equal content; duplicates in both halves make a test too easy."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int
from PIL import Image

from levelfield.data.index import Sample, SampleIndex


class Duplicate(NamedTuple):
    """Keys with equal content, with the class of each and whether it is a test class."""

    keys: tuple[str, ...]
    class_names: tuple[str, ...]
    tested: tuple[bool, ...]

    @property
    def in_both_halves(self) -> bool:
        return len(set(self.tested)) == 2

    @property
    def in_several_classes(self) -> bool:
        return len(set(self.class_names)) > 1

    def __str__(self) -> str:
        places = zip(self.keys, self.class_names, self.tested, strict=True)
        same = " = ".join(f"{key} ({name}, {'test' if tested else 'training'})" for key, name, tested in places)
        where = f"in {len(set(self.class_names))} classes" if self.in_several_classes else "in one class"
        return f"{'in both halves' if self.in_both_halves else where}: {same}"


def duplicates_of(
    index: SampleIndex, test_classes: Int[np.ndarray, " test"], digests: Mapping[str, bytes]
) -> list[Duplicate]:
    """Group samples by the digest of their content: duplicates in both halves first, then those in several classes.

    Args:
        digests: key to digest of the samples that were opened.
    """
    tested = set(test_classes.tolist())
    places: dict[bytes, list[tuple[str, int]]] = {}
    for key, label in zip(index.keys, index.labels.tolist(), strict=True):
        if key in digests:
            places.setdefault(digests[key], []).append((key, label))
    found = [
        Duplicate(
            tuple(key for key, _ in same),
            tuple(index.class_names[label] for _, label in same),
            tuple(label in tested for _, label in same),
        )
        for same in places.values()
        if len(same) > 1
    ]
    return sorted(found, key=lambda same: (not same.in_both_halves, not same.in_several_classes))


def content_digest(sample: Sample) -> bytes:
    """SHA-256 of a text, or of the size and pixels of an image."""
    if isinstance(sample, Image.Image):
        return hashlib.sha256(f"{sample.mode} {sample.size}\n".encode() + sample.tobytes()).digest()
    return hashlib.sha256(sample.encode()).digest()


def describe_duplicates(duplicates: Sequence[Duplicate]) -> list[str]:
    """One line with their number and one per duplicate; empty if there are none."""
    if not duplicates:
        return []
    both = sum(same.in_both_halves for same in duplicates)
    several = sum(same.in_several_classes for same in duplicates)
    what = "sample is" if len(duplicates) == 1 else "samples are"
    count = f"{len(duplicates):,} {what} there more than once, {several:,} in several classes, {both:,} in both halves"
    return [count, *(f"  {same}" for same in duplicates)]
