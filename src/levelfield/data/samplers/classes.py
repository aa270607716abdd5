"""Classes of which a batch takes several samples: who belongs to each, and a draw of some of them."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from levelfield.errors import UserError

Members = Int[np.ndarray, " members"]


class TrainedClasses:
    """The classes with 2 samples or more.

    Attributes:
        num_left_out: classes with one sample, which leave training.

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
                f"{len(self)} training classes have 2 samples or more; training needs at least 2 such classes"
            )

    def __len__(self) -> int:
        return len(self._first)

    def members(self, number: int) -> Members:
        """Positions of a class' samples, ascending."""
        return self._order[self._first[number] : self._first[number] + self._counts[number]]

    @property
    def left_out(self) -> list[str]:
        """A sentence on the classes that leave training, if there are any."""
        plural = "" if self.num_left_out == 1 else "es"
        return [f"{self.num_left_out} class{plural} with one sample left out of training"] if self.num_left_out else []

    def draw(self, counts: Sequence[int], replacement: bool, rng: np.random.Generator) -> Int[np.ndarray, " batch"]:
        """Draw as many classes as `counts` has numbers, without replacement, and that many samples of each.

        A class with fewer samples is filled by repetition, all of its samples before any again, unless they are drawn
        with replacement.
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
