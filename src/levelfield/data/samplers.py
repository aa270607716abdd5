"""Batches of C classes with M samples each, and evaluation in order: the same on any number of processes.

Both are DistributedSamplers, which a Lightning Trainer leaves as they are.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int
from torch.utils.data import DistributedSampler

from levelfield.errors import UserError
from levelfield.seeds import seed_of


class Draw(int):
    """One sample of a batch: its index in the data set, and its number in the stream of the whole run.

    It is the index to a data set that knows nothing of draws. Random augmentation is seeded by `number`, so a repeated
    index is another view.

    Example:
        >>> draw = Draw(1, number=64)
        >>> "abc"[draw], draw.index, draw.number
        ('b', 1, 64)
    """

    number: int

    def __new__(cls, index: int, number: int) -> "Draw":
        draw = super().__new__(cls, index)
        draw.number = number
        return draw

    def __reduce__(self) -> tuple[type["Draw"], tuple[int, int]]:
        return Draw, (int(self), self.number)

    @property
    def index(self) -> int:
        return int(self)


class MPerClassBatchSampler(DistributedSampler[list[Draw]]):
    """C = batch_size / samples_per_class classes drawn without replacement, then M = samples_per_class of each.

    A batch is a function of (seed, epoch, batch number) alone, and rank r of W takes the contiguous slice
    [r * B / W, (r + 1) * B / W) of it: W processes see together what one would. A class smaller than M is filled by
    repetition, all of its samples before any again, unless they are drawn with replacement. Classes with one sample
    leave training (`num_left_out`). With fewer than C classes all are used, each with more samples, so that the batch
    size stays (`differences` says so).

    It is the `batch_sampler` of a loader over any data set. Where a Trainer runs on several processes, it must be the
    `sampler` of a loader with `batch_size=None`, which Lightning leaves alone, and the data set must take a list of
    indices (`ClassSubset` and `TensorDataset` do).

    Args:
        labels: the class of each sample of the data set, (N,) integers.
        batch_size: samples in a batch, over all processes together.
        samples_per_class: M; 1 for classification losses.
        num_batches: batches in an epoch.
        seed: of the whole stream.
        rank: this process, 0 to world_size - 1.
        world_size: number of processes; it must divide `batch_size`.
        replacement: draw the M samples of a class each from all of it, so that some may repeat (Zhai and Wu).

    Raises:
        UserError: a batch size that M or the number of processes does not divide, or fewer than 2 usable classes.
    """

    def __init__(
        self,
        labels: Int[np.ndarray, " samples"] | Sequence[int],
        batch_size: int,
        samples_per_class: int,
        num_batches: int,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        replacement: bool = False,
    ) -> None:
        for key, value in {"samples_per_class": samples_per_class, "num_batches": num_batches}.items():
            if value < 1:
                raise UserError(f"{key} is {value}: give 1 or more")
        if batch_size < 2 or batch_size % samples_per_class:
            raise UserError(
                f"batch_size {batch_size} is not a multiple of samples_per_class {samples_per_class}: "
                f"give {samples_per_class * max(2, batch_size // samples_per_class)}, for example"
            )
        if batch_size % world_size:
            raise UserError(
                f"batch_size {batch_size} cannot be shared by {world_size} processes: "
                f"give {-(-batch_size // world_size) * world_size}, or use another number of devices"
            )
        label_array = np.asarray(labels)
        super().__init__(label_array, num_replicas=world_size, rank=rank, seed=seed)  # type: ignore[arg-type]
        order = np.argsort(label_array, kind="stable")
        _, first = np.unique(label_array[order], return_index=True)
        classes = np.split(order, first[1:])
        self._members = [members for members in classes if len(members) >= 2]
        self.num_left_out = len(classes) - len(self._members)
        if len(self._members) < 2:
            raise UserError(
                f"{len(self._members)} training classes have 2 samples or more; training needs at least 2 such classes"
            )
        self.batch_size = batch_size
        self.samples_per_class = samples_per_class
        self.classes_per_batch = min(batch_size // samples_per_class, len(self._members))
        self.num_batches = num_batches
        self.world_size = world_size
        self.replacement = replacement

    @property
    def effective_samples_per_class(self) -> float:
        """Mean number of samples of a class in a batch; more than M where there are fewer than C classes."""
        return self.batch_size / self.classes_per_batch

    @property
    def differences(self) -> str:
        """How the batches differ from what was asked for, as one line; empty if they do not."""
        found = []
        asked = self.batch_size // self.samples_per_class
        if self.classes_per_batch < asked:
            found.append(
                f"batches hold {self.classes_per_batch} classes instead of {asked}, with "
                f"{self.effective_samples_per_class:.3g} samples of each instead of {self.samples_per_class}: "
                "there are no more"
            )
        if self.num_left_out:
            plural = "" if self.num_left_out == 1 else "es"
            found.append(f"{self.num_left_out} class{plural} with one sample left out of training")
        return "; ".join(found)

    @property
    def sampler(self) -> "MPerClassBatchSampler":
        """This object: as a `batch_sampler`, Lightning calls `set_epoch` on its `sampler` only."""
        return self

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[list[Draw]]:
        share = self.batch_size // self.world_size
        for batch in range(self.num_batches):
            indices = self._global_batch(batch)
            first_number = (self.epoch * self.num_batches + batch) * self.batch_size
            mine = range(self.rank * share, (self.rank + 1) * share)
            yield [Draw(int(indices[position]), first_number + position) for position in mine]

    def _global_batch(self, batch: int) -> Int[np.ndarray, " batch"]:
        rng = np.random.default_rng(seed_of("batch", self.seed, self.epoch, batch))
        drawn = rng.choice(len(self._members), self.classes_per_batch, replace=False)
        samples_each, one_more = divmod(self.batch_size, self.classes_per_batch)
        return np.concatenate(
            [
                _draw_members(self._members[c], samples_each + (position < one_more), self.replacement, rng)
                for position, c in enumerate(drawn)
            ]
        )


def _draw_members(
    members: Int[np.ndarray, " members"], count: int, replacement: bool, rng: np.random.Generator
) -> Int[np.ndarray, " count"]:
    if replacement:
        return rng.choice(members, count)
    rounds = [rng.permutation(members) for _ in range(count // len(members))]
    return np.concatenate([*rounds, rng.choice(members, count % len(members), replace=False)])


class EvalSampler(DistributedSampler[int]):
    """All samples in order, a contiguous share to each process, every share of the same length.

    The last shares are filled up with samples from the beginning, so that no process waits for another. Carry the index
    of each sample and drop what is there twice before computing a score: a repeated sample is its own nearest
    neighbour.
    """

    def __init__(self, num_samples: int, rank: int = 0, world_size: int = 1) -> None:
        super().__init__(range(num_samples), num_replicas=world_size, rank=rank, shuffle=False)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[int]:
        first = self.rank * len(self)
        return (position % len(self.dataset) for position in range(first, first + len(self)))  # type: ignore[arg-type]
