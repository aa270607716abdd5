"""The list of a data set's samples, read without opening them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np
from jaxtyping import Bool, Int
from PIL import Image

Sample = Image.Image | str
Role = Literal["query", "gallery", ""]
Class = TypeVar("Class")


@dataclass(frozen=True)
class SampleIndex:
    """Keys and labels of samples; labels (N,) int64 index `class_names`.

    Attributes:
        keys: a tuple, or the lazy `Keys` of a table.
        test_classes: labels of the official test classes; None without a class-disjoint official split.
        roles: the role of each sample in the test: query, gallery, or `""` for a training sample; None if each test
            sample is a query among all others.
        left_out: a line for each kind of file or row that is not a sample.
        coarse_names: the coarse class of each class; None without coarse classes.
        positions: the position of each sample in the data set; None for a complete index.
        groups: the group of each sample (a camera, a session) as a number; samples of the query's class and group leave
            its gallery. None without groups.
    """

    keys: Sequence[str]
    labels: Int[np.ndarray, " samples"]
    class_names: tuple[str, ...]
    test_classes: tuple[int, ...] | None = None
    roles: tuple[Role, ...] | None = None
    left_out: tuple[str, ...] = ()
    coarse_names: tuple[str, ...] | None = None
    positions: Int[np.ndarray, " samples"] | None = None
    groups: Int[np.ndarray, " samples"] | None = None

    def coarse_labels(self) -> Int[np.ndarray, " samples"] | None:
        """The coarse class of each sample, numbered in the order of names; None without coarse classes."""
        if self.coarse_names is None:
            return None
        return np.unique(self.coarse_names, return_inverse=True)[1].astype(np.int64)[self.labels]

    def select(
        self, indices: Int[np.ndarray, " chosen"] | Bool[np.ndarray, " samples"] | Sequence[int]
    ) -> "SampleIndex":
        """The samples at `indices` (or where a mask is true); class names and labels stay the same."""
        positions = np.arange(len(self.keys))[np.asarray(indices)] if len(indices) else np.empty(0, np.int64)
        return replace(
            self,
            keys=_taken(self.keys, positions),
            labels=self.labels[positions],
            roles=None if self.roles is None else _taken(self.roles, positions),
            positions=positions if self.positions is None else self.positions[positions],
            groups=None if self.groups is None else self.groups[positions],
        )


def _taken(values: Any, positions: Int[np.ndarray, " chosen"]) -> Any:
    return values[positions] if not isinstance(values, tuple) else tuple(values[i] for i in positions)


def class_order(names: Iterable[str]) -> list[str]:
    """Different names by number if all are whole numbers, else by name."""
    different = set(names)
    whole = all(name.removeprefix("-").isdecimal() for name in different)
    return sorted(different, key=lambda name: (int(name) if whole else 0, name))


def index_of_classes(samples: Iterable[tuple[str, Class]], names: Mapping[Class, str], **further: Any) -> SampleIndex:
    """The index of (key, class) pairs; labels follow the order of `names`. `further` are fields of `SampleIndex`."""
    label_of, listed = {each: label for label, each in enumerate(names)}, list(samples)
    labels = np.array([label_of[each] for _, each in listed], dtype=np.int64)
    return SampleIndex(tuple(key for key, _ in listed), labels, tuple(names.values()), **further)
