"""The base class of training samplers: one stream of draws, the same on any number of processes.

They are DistributedSamplers, which a Lightning Trainer does not replace.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from math import lcm
from typing import Protocol

import numpy as np
import torch.distributed as dist
from jaxtyping import Int
from torch.utils.data import DistributedSampler

from levelfield.core.errors import UserError
from levelfield.core.seeds import global_seed


class Draw(int):
    """One sample of a batch: its index in the data set, and its number in the stream of the whole run.

    For other data sets it is a plain index. `number` seeds random augmentation, so a repeated index gets another view.

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


class TrainingBatchSampler(DistributedSampler[list[Draw]]):
    """Batches of indices, each a function of (seed, epoch, batch number) only. Subclasses draw the samples.

    Rank r of W takes the contiguous slice [r * B / W, (r + 1) * B / W) of a batch, so W processes together see the
    batch of one. Your own sampler overrides `indices_of`, and `prepare` if it needs preparation or batches of another
    `size`.

    Use it as the `sampler` of a loader with `batch_size=None`; the data set must take a list of indices (`ClassSubset`
    and `TensorDataset` do). Or use it as the `batch_sampler` of a loader over any data set; a Trainer on several
    processes then needs `use_distributed_sampler=False`.

    Args:
        labels: the class of each sample of the data set, (N,) integers.
        batch_size: samples in a batch, over all processes together.
        samples_per_class: M, the samples per class and batch.
        num_batches: batches in an epoch.
        seed: seed of the whole stream. None takes that of `seed_everything`, or 0.
        rank: number of this process, 0 to world_size - 1.
        world_size: number of processes; it must divide the size of a batch. None takes rank and number from
            torch.distributed when a pass begins.
        replacement: whether to draw the samples of a class with replacement.

    Attributes:
        size: actual number of samples in a batch.

    Raises:
        UserError: a number below 1, or a batch that the processes cannot divide.
    """

    def __init__(
        self,
        labels: Int[np.ndarray, " samples"] | Sequence[int],
        batch_size: int,
        samples_per_class: int,
        num_batches: int,
        seed: int | None = None,
        rank: int = 0,
        world_size: int | None = None,
        replacement: bool = False,
    ) -> None:
        for key, value in {"samples_per_class": samples_per_class, "num_batches": num_batches}.items():
            if value < 1:
                raise UserError(f"{key} is {value}: give 1 or more")
        if batch_size < 2:
            raise UserError(f"batch_size is {batch_size}: give 2 or more")
        self.labels: Int[np.ndarray, " samples"] = np.asarray(labels)
        replicas, seed = world_size or 1, global_seed(seed)
        super().__init__(self.labels, num_replicas=replicas, rank=rank, seed=seed)  # type: ignore[arg-type]
        del self.drop_last  # with it, Lightning takes a batch sampler for one that it can build again
        self.batch_size = self.size = batch_size
        self.samples_per_class = samples_per_class
        self.num_batches = num_batches
        self.world_size = world_size
        self.replacement = replacement
        self.prepare()
        self._place()

    def _place(self) -> tuple[int, int]:
        """Rank and number of the processes that share a batch."""
        rank, world_size = self.rank, self.world_size or 1
        if self.world_size is None and dist.is_available() and dist.is_initialized():
            rank, world_size = dist.get_rank(), dist.get_world_size()
        if self.size % world_size:
            given, step = self.size == self.batch_size, lcm(world_size, self.samples_per_class)
            remedy = f"give {-(-self.size // step) * step}, or use" if given else "use"
            raise UserError(
                f"{'batch_size' if given else 'a batch of'} {self.size} cannot be divided by {world_size} processes: "
                f"{remedy} another number of devices"
            )
        return rank, world_size

    def prepare(self) -> None:
        """Check the arguments and prepare the batches."""

    @abstractmethod
    def indices_of(self, batch: int) -> Int[np.ndarray, " batch"]:
        """The indices of batch number `batch` (from 0) of the epoch `self.epoch`, over all processes together."""

    @property
    def differences(self) -> str:
        """How the batches differ from the arguments, in one line; empty if they do not."""
        return ""

    @property
    def sampler(self) -> "TrainingBatchSampler":
        """This object: Lightning calls `set_epoch` only on the `sampler` of a `batch_sampler`."""
        return self

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[list[Draw]]:
        rank, world_size = self._place()
        share = self.size // world_size
        for batch in range(self.num_batches):
            indices = self.indices_of(batch)
            first_number = (self.epoch * self.num_batches + batch) * self.size
            mine = range(rank * share, (rank + 1) * share)
            yield [Draw(int(indices[position]), first_number + position) for position in mine]


class SamplerFactory(Protocol):
    """A class or partial that returns the sampler of the training batches."""

    def __call__(
        self,
        *,
        labels: np.ndarray,
        batch_size: int,
        samples_per_class: int,
        num_batches: int,
        seed: int,
        rank: int,
        world_size: int,
        replacement: bool,
    ) -> TrainingBatchSampler: ...
