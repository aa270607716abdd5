"""The classes of class-balanced batches: their members, and random draws."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from levelfield.core.errors import UserError

Members = Int[np.ndarray, " members"]


class TrainedClasses:
    """The classes with at least 2 samples.

    Attributes:
        num_left_out: number of classes with one sample, which are left out of training.

    Raises:
        UserError: fewer than 2 usable classes.
    """

    def __init__(self, labels: Int[np.ndarray, " samples"]) -> None:
        self._order = np.argsort(labels, kind="stable")
        _, first, counts = np.unique(labels[self._order], return_index=True, return_counts=True)
        self._first, self._counts = first[counts >= 2], counts[counts >= 2]
        self.num_left_out = len(first) - len(self)
        if len(self) < 2:
            raise UserError(
                f"{len(self)} training classes have at least 2 samples, but training needs 2 such classes: add samples"
            )

    def __len__(self) -> int:
        return len(self._first)

    def members(self, number: int) -> Members:
        """Positions of the samples of a class, ascending."""
        return self._order[self._first[number] : self._first[number] + self._counts[number]]

    @property
    def left_out(self) -> list[str]:
        """A sentence on the classes that are left out of training, if there are any."""
        plural = "" if self.num_left_out == 1 else "es"
        return [f"{self.num_left_out} class{plural} with one sample left out of training"] if self.num_left_out else []

    def draw(self, counts: Sequence[int], replacement: bool, rng: np.random.Generator) -> Int[np.ndarray, " batch"]:
        """Draw one class for each number in `counts`, without replacement, and that many samples of it.

        Without replacement, a class with fewer samples uses each of them once before it repeats any.
        """
        drawn = rng.choice(len(self), len(counts), replace=False)
        return np.concatenate(
            [_draw_members(self.members(c), count, replacement, rng) for c, count in zip(drawn, counts, strict=True)]
        )


def _draw_members(
    members: Members, count: int, replacement: bool, rng: np.random.Generator
) -> Int[np.ndarray, " count"]:
    if replacement:
        return rng.choice(members, count)
    rounds = [rng.permutation(members) for _ in range(count // len(members))]
    return np.concatenate([*rounds, rng.choice(members, count % len(members), replace=False)])
