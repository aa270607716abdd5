"""A batch that several processes hold alike, of which each computes the loss of its own rows alone.

The loss is the mean over processes of what each computes, and its gradients are the means of theirs, as
DistributedDataParallel takes them. Each process has as many rows: a plain mean over rows, or a term that does not
depend on them, is right as it stands. A mean over what counts divides by the mean over processes of how many count.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import Tensor, autograd

_sharing = False


@contextmanager
def rows_are_shared() -> Iterator[None]:
    """Inside, a loss is of rows: all processes of the group compute it at once, and meet at each number below."""
    global _sharing
    _sharing = True
    try:
        yield
    finally:
        _sharing = False


def mean_over_ranks(number: Tensor) -> Tensor:
    """The mean over the processes that share the rows; where none do, the number as it is.

    Its gradient is that of this process's number, for gradients are averaged later.
    """
    return _MeanOverRanks.apply(number) if _sharing else number


def count_over_ranks(count: Tensor) -> Tensor:
    """What a sum over rows is divided by for a mean over all that count: their number, and 1 where there is none.

    Of shared rows the mean over processes of that number.
    """
    if not _sharing:
        return count.clamp_min(1)
    return mean_over_ranks(count).clamp_min(1 / dist.get_world_size())


def mean_of_all(terms: Tensor) -> Tensor:
    """The mean over the terms, of which one process may have more than another, or none; 0 if there is none at all."""
    if not _sharing:
        return terms.mean() if len(terms) > 0 else terms.sum()
    return terms.sum() / count_over_ranks(terms.new_tensor(len(terms)))


class _MeanOverRanks(autograd.Function):
    @staticmethod
    def forward(ctx: Any, number: Tensor) -> Tensor:
        total = number.clone()
        dist.all_reduce(total)
        return total / dist.get_world_size()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient
