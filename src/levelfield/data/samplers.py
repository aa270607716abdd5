"""Samplers of training batches: the same draws on any number of processes.

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
from levelfield.core.seeds import global_seed, seed_of

__all__ = ["Draw", "MPerClassBatchSampler", "ShuffledBatchSampler", "TrainingBatchSampler"]


class Draw(int):
    """One sample of a batch: its index in the data set, and its number in the stream of the whole run.

    For other data sets it is a plain index. `number` seeds random augmentation, so a repeated index gets another view.

    Example:
        >>> draw = Draw(1, number=64)
        >>> "abc"[draw], draw.number
        ('b', 64)
    """

    number: int

    def __new__(cls, index: int, number: int) -> "Draw":
        draw = super().__new__(cls, index)
        draw.number = number
        return draw

    def __reduce__(self) -> tuple[type["Draw"], tuple[int, int]]:
        return Draw, (int(self), self.number)


class TrainingBatchSampler(DistributedSampler[list[Draw]]):
    """Batches of indices, each a function of (seed, epoch, batch number) only. Subclasses draw the samples.

    Rank r of W takes the contiguous slice [r * B / W, (r + 1) * B / W) of a batch, so W processes together see the
    batch of one. Your own sampler overrides `indices_of`, and `prepare` if it needs preparation or batches of another
    `size`.

    It is the `batch_sampler` of a loader over any data set; a Trainer on several processes then needs
    `use_distributed_sampler=False`. Or it is the `sampler` of a loader with `batch_size=None`, over a data set that
    takes a list of indices (`ClassSubset`, `TensorDataset`).

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
        least = {"samples_per_class": (samples_per_class, 1), "num_batches": (num_batches, 1)}
        for key, (value, at_least) in {**least, "batch_size": (batch_size, 2)}.items():
            if value < at_least:
                raise UserError(f"{key} is {value}: give {at_least} or more")
        self.labels: Int[np.ndarray, " samples"] = np.asarray(labels)
        replicas, seed = world_size or 1, global_seed(seed)
        super().__init__(self.labels, num_replicas=replicas, rank=rank, seed=seed)  # type: ignore[arg-type]
        del self.drop_last  # with it, Lightning takes a batch sampler for one that it can build again
        self.batch_size = self.size = batch_size
        self.samples_per_class, self.num_batches = samples_per_class, num_batches
        self.world_size, self.replacement = world_size, replacement
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
    """A class or partial that returns the sampler of the training batches; a user's class may have more arguments."""

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


class MPerClassBatchSampler(TrainingBatchSampler):
    """C = batch_size / samples_per_class classes drawn without replacement, then M = samples_per_class of each.

    Without replacement, a class with fewer than M samples uses each of them once before it repeats any.
    Classes with one sample are left out (`num_left_out`). With fewer than C classes it takes more samples of each, so
    the batch size stays the same (`differences` reports it). The arguments are those of `TrainingBatchSampler`.

    When: pairs, triplets and other losses that compare samples of a batch.

    Raises:
        UserError: M or the number of processes does not divide the batch size, or fewer than 2 classes in a
            batch or in the data.

    Example:
        >>> [len(set(batch)) for batch in MPerClassBatchSampler([0, 0, 1, 1, 2, 2], 4, 2, num_batches=2)]
        [4, 4]
    """

    def check(self) -> None:
        """Raise UserError for numbers that make no such batch."""
        if self.batch_size % self.samples_per_class:
            nearest = self.samples_per_class * max(2, self.batch_size // self.samples_per_class)
            raise UserError(
                f"batch_size {self.batch_size} is not a multiple of samples_per_class {self.samples_per_class}: "
                f"give {nearest}, for example"
            )
        if self.batch_size == self.samples_per_class:
            raise UserError(
                f"a batch of {self.batch_size} with {self.batch_size} samples per class has no negatives: "
                f"give --data.batch_size {2 * self.batch_size}, or --data.samples_per_class {self.batch_size // 2}"
            )

    def prepare(self) -> None:
        self.check()
        self._order = np.argsort(self.labels, kind="stable")
        _, first, counts = np.unique(self.labels[self._order], return_index=True, return_counts=True)
        self._first, self._counts = first[counts >= 2], counts[counts >= 2]
        self.num_left_out = len(first) - len(self._first)
        if len(self._first) < 2:
            raise UserError(f"{len(self._first)} training classes have at least 2 samples, but 2 must: add samples")
        self.classes_per_batch = min(self.batch_size // self.samples_per_class, len(self._first))
        self.size = sum(self.samples_of_classes())

    def samples_of_classes(self) -> list[int]:
        """The number of samples of each class in a batch."""
        samples_each, one_more = divmod(self.batch_size, self.classes_per_batch)
        return [samples_each + (position < one_more) for position in range(self.classes_per_batch)]

    def indices_of(self, batch: int) -> Int[np.ndarray, " batch"]:
        rng = np.random.default_rng(seed_of("batch", self.seed, self.epoch, batch))
        drawn = rng.choice(len(self._first), self.classes_per_batch, replace=False)
        counts = self.samples_of_classes()
        return np.concatenate([self._draw(number, count, rng) for number, count in zip(drawn, counts, strict=True)])

    def _draw(self, number: int, count: int, rng: np.random.Generator) -> Int[np.ndarray, " count"]:
        members = self._order[self._first[number] : self._first[number] + self._counts[number]]
        if self.replacement:
            return rng.choice(members, count)
        rounds = [rng.permutation(members) for _ in range(count // len(members))]
        return np.concatenate([*rounds, rng.choice(members, count % len(members), replace=False)])

    @property
    def differences(self) -> str:
        classes, asked, found = self.classes_per_batch, self.batch_size // self.samples_per_class, []
        if (self.size, classes) != (self.batch_size, asked):
            held = f"{self.size} samples of {classes} class{'es' * (classes != 1)}"
            found.append(f"batches hold {held} instead of {self.batch_size} of {asked}")
        if classes == 1:
            found.append("a batch has one class: a loss that compares samples has no negatives")
        if out := self.num_left_out:
            found.append(f"{out} class{'es' * (out != 1)} with one sample left out of training")
        return "; ".join(found)


class ShuffledBatchSampler(TrainingBatchSampler):
    """All samples in a random order, pass after pass, cut into batches.

    Each pass has every sample once. Passes are independent of epochs: the stream continues in the next epoch. A batch
    across the end of a pass may have a sample twice. Classes with one sample are trained too. `samples_per_class` has
    no effect.

    When: losses with class weights, compared with training without balanced batches (Zhai and Wu's Table 4, S none).

    Raises:
        UserError: the processes cannot divide the batch, or `replacement`.

    Example:
        >>> sampler = ShuffledBatchSampler([0, 0, 0, 0, 1, 1], batch_size=2, samples_per_class=1, num_batches=3)
        >>> sorted(int(draw) for batch in sampler for draw in batch)
        [0, 1, 2, 3, 4, 5]
    """

    def prepare(self) -> None:
        if self.replacement:
            raise UserError("--data.replacement true: ShuffledBatchSampler takes all samples in turn; leave it out")
        self._orders: dict[int, Int[np.ndarray, " samples"]] = {}  # of the passes of the last batch

    def indices_of(self, batch: int) -> Int[np.ndarray, " batch"]:
        first = (self.epoch * self.num_batches + batch) * self.batch_size
        passes, places = np.divmod(np.arange(first, first + self.batch_size), len(self.labels))
        known, self._orders = self._orders, {}
        for number in np.unique(passes).tolist():
            rng = np.random.default_rng(seed_of("pass", self.seed, number))
            self._orders[number] = known[number] if number in known else rng.permutation(len(self.labels))
        return np.array([self._orders[number][place] for number, place in zip(passes.tolist(), places, strict=True)])
