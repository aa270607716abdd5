"""The list of a data set's samples, which is read without opening one."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np
from jaxtyping import Bool, Int
from PIL import Image

from levelfield.data.strings import Keys

Sample = Image.Image | str
Role = Literal["query", "gallery", ""]
Class = TypeVar("Class")


@dataclass(frozen=True)
class SampleIndex:
    """Keys and labels of samples; labels (N,) int64 index `class_names`.

    Attributes:
        keys: a tuple, or a table's or a shard's `Keys`.
        test_classes: the labels that the data set's own split tests on; None where it has no class-disjoint split.
        roles: of each sample, whether it asks or is searched when the test classes are scored, or neither (`""`, in
            training); None where each test sample asks all others.
        left_out: a line for each kind of thing that was found where the samples lie and is none.
        coarse_names: of each class, the group that it is of; None where the classes are not grouped.
        positions: of each sample, where it is in the data set; None of an index that is whole.
    """

    keys: Sequence[str]
    labels: Int[np.ndarray, " samples"]
    class_names: tuple[str, ...]
    test_classes: tuple[int, ...] | None = None
    roles: tuple[Role, ...] | None = None
    left_out: tuple[str, ...] = ()
    coarse_names: tuple[str, ...] | None = None
    positions: Int[np.ndarray, " samples"] | None = None

    def coarse_labels(self) -> Int[np.ndarray, " samples"] | None:
        """The group of each sample's class, numbered in order of the names; None where there are none."""
        if self.coarse_names is None:
            return None
        return np.unique(self.coarse_names, return_inverse=True)[1].astype(np.int64)[self.labels]

    def select(
        self, indices: Int[np.ndarray, " chosen"] | Bool[np.ndarray, " samples"] | Sequence[int]
    ) -> "SampleIndex":
        """The samples at `indices` (or where a mask is true); class names and labels stay what they are."""
        positions = np.arange(len(self.keys))[np.asarray(indices)] if len(indices) else np.empty(0, np.int64)
        return replace(
            self,
            keys=_taken(self.keys, positions),
            labels=self.labels[positions],
            roles=None if self.roles is None else _taken(self.roles, positions),
            positions=positions if self.positions is None else self.positions[positions],
        )


def _taken(values: Any, positions: Int[np.ndarray, " chosen"]) -> Any:
    return values[positions] if isinstance(values, Keys) else tuple(values[i] for i in positions)


def index_of_classes(samples: Iterable[tuple[str, Class]], names: Mapping[Class, str], **further: Any) -> SampleIndex:
    """The index of keys with their classes, numbered in the order of `names`; `further` is `SampleIndex`'s."""
    label_of, listed = {each: label for label, each in enumerate(names)}, list(samples)
    labels = np.array([label_of[each] for _, each in listed], dtype=np.int64)
    return SampleIndex(tuple(key for key, _ in listed), labels, tuple(names.values()), **further)
