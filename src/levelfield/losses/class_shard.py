"""Class weights over processes: which classes a process holds, and what the processes tell one another in a step.

Every process has the whole batch and computes the same loss of it from its own classes: what runs over all classes, a
softmax's sum or a mean of proxies, is summed over processes (the conjugate operators of Shoeybi et al. 2019,
"Megatron-LM", arXiv:1909.08053, section 3). Every process gets one process's value and gradients of embeddings.

N samples, C classes, c of them held here, K centres a class, D dimensions.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor

BLOCK = 2**16  # rows that are drawn at once


class ClassShard:
    """This process's share of the classes: classes `first` to `last` - 1.

    Args:
        num_classes: C.
        centers: K, rows a class.
        divided: whether the processes of the group, if there is one, share the classes; else each holds all of them.

    Attributes:
        world_size: number of processes that share the classes.
    """

    def __init__(self, num_classes: int, centers: int, divided: bool) -> None:
        self.divided = divided
        self.world_size, self.rank = (_world_size(), dist.get_rank()) if divided and _world_size() > 1 else (1, 0)
        bounds = [num_classes * rank // self.world_size for rank in range(self.world_size + 1)]
        self.first, self.last = bounds[self.rank : self.rank + 2]
        self.rows = [bound * centers for bound in bounds]

    def check_group(self, name: str) -> None:
        """Raise ValueError if a loss called `name` is used by another number of processes than it was made for."""
        if self.divided and self.world_size != _world_size():
            raise ValueError(
                f"{name}(shard_classes=True) was made by {self.world_size} process(es) and is used by {_world_size()}: "
                "give the loss as a class or a partial, for it to be made once the processes are together"
            )

    def own(self, whole: Tensor) -> Tensor:
        """Of a tensor with a row for each centre of all classes, the rows of this process; another as it is."""
        begin, end = self.rows[self.rank : self.rank + 2]
        return whole[begin:end] if len(whole) == self.rows[-1] else whole

    def whole(self, own: Tensor) -> Tensor:
        """Of tensors with a row for each centre held, those of all processes, in the first one's main memory.

        All processes must call it; the others get their own back. The rows come by turns.
        """
        begin, end = self.rows[self.rank : self.rank + 2]
        if self.world_size == 1 or len(own) != end - begin:
            return own
        device = torch.device("cpu" if dist.get_backend() == dist.Backend.GLOO else "cuda")
        if self.rank > 0:
            dist.send(own.detach().to(device).contiguous(), 0)
            return own
        parts = [own.detach().cpu()]
        for rank in range(1, self.world_size):
            theirs = own.new_empty(self.rows[rank + 1] - self.rows[rank], *own.shape[1:], device=device)
            dist.recv(theirs, rank)
            parts.append(theirs.cpu())
        return torch.cat(parts)

    @torch.no_grad()
    def draw(self, weights: Float[Tensor, "cK D"], fill: Callable[[Tensor], object]) -> None:
        """Fill the rows of this process with what one draw of all rows would give them, a block at a time.

        On a CPU, where a draw of many numbers is one of multiples of 16 after another.
        """
        if self.world_size == 1:
            fill(weights)
            return
        starts = list(range(0, self.rows[-1], BLOCK))
        if len(starts) > 1 and self.rows[-1] - starts[-1] < 16:
            starts.pop()
        begin, end = self.rows[self.rank : self.rank + 2]
        for start, stop in zip(starts, [*starts[1:], self.rows[-1]], strict=True):
            fill(block := weights.new_empty(stop - start, weights.shape[1]))
            low, high = max(start, begin), min(stop, end)
            if low < high:
                weights[low - begin : high - begin] = block[low - start : high - start]

    def receive(self, embeddings: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
        """The embeddings as they are; their gradient is the sum of what each process's classes say."""
        return _Receive.apply(embeddings)

    def sum(self, of_own: Tensor) -> Tensor:
        """The sum over processes; each has its gradient as it is, for each computes the same from the sum."""
        return _Sum.apply(of_own)

    def logsumexp_and_own(
        self, logits: Float[Tensor, "N c+1"], labels: Int[Tensor, " N"], others_alone: bool = False
    ) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
        """log sum e^z over the classes of all processes, and each sample's logit of its own class.

        The last column is no class, but the label of samples whose class another process holds.

        Args:
            others_alone: whether the sum leaves out each sample's own class.
        """
        return _LogSumExpAndOwn.apply(logits, labels, others_alone)


def _world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


class _Receive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, embeddings: Tensor) -> Tensor:
        return embeddings.view_as(embeddings)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient)
        return gradient


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, of_own: Tensor) -> Tensor:
        total = of_own.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class _LogSumExpAndOwn(torch.autograd.Function):
    """One buffer, which holds the softmax for the gradient, and another for the gradient itself."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, others_alone: bool) -> tuple[Tensor, Tensor]:
        here, column = labels < logits.shape[1] - 1, labels[:, None]
        own = torch.where(here, logits.gather(1, column).squeeze(1), 0.0)
        shares = logits.clone()
        shares[:, -1] = -torch.inf
        if others_alone:
            shares.scatter_(1, column, -torch.inf)
        dist.all_reduce(largest := shares.amax(1), dist.ReduceOp.MAX)
        sums = torch.stack([shares.sub_(largest[:, None]).exp_().sum(1), own])
        dist.all_reduce(sums)
        ctx.save_for_backward(shares.div_(sums[0][:, None]), labels, here)
        return largest + sums[0].log(), sums[1]

    @staticmethod
    def backward(ctx: Any, of_sum: Tensor, of_own: Tensor) -> tuple[Tensor, None, None]:
        shares, labels, here = ctx.saved_tensors
        gradient = shares * of_sum[:, None]
        return gradient.scatter_add_(1, labels[:, None], torch.where(here, of_own, 0.0)[:, None]), None, None


@torch.no_grad()
def draw_classes(labels: Int[Tensor, " N"], num_classes: int, size: int) -> Int[Tensor, " drawn"]:
    """The batch's classes and a uniform sample of the others, `size` in all if the batch has no more; ascending.

    Its time is that of `size` numbers, not of all classes.
    """
    own = labels.unique()
    others = own[:0]
    missing = max(size - len(own), 0)
    while len(others) < missing:  # of all sets of as many others each is as likely, and so is each part of them
        if 2 * size > num_classes:
            drawn = torch.arange(num_classes, device=labels.device)
        else:
            drawn = torch.randint(num_classes, (size,), device=labels.device)
        others = torch.cat([others, drawn]).unique()
        others = others[~torch.isin(others, own)]
    kept = others[torch.randperm(len(others), device=labels.device)[:missing]]
    return torch.cat([own, kept]).sort().values


def take_rows(weights: Float[Tensor, "cK D"], rows: Int[Tensor, " drawn"]) -> Float[Tensor, "drawn D"]:
    """Some rows, each once and ascending; the gradient is sparse and holds these alone."""
    return _TakeRows.apply(weights, rows)


class _TakeRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, rows: Tensor) -> Tensor:
        ctx.shape = weights.shape
        ctx.save_for_backward(rows)
        return weights.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (rows,) = ctx.saved_tensors
        return torch.sparse_coo_tensor(rows[None], gradient, ctx.shape, is_coalesced=True, check_invariants=False), None
