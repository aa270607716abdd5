"""Evaluation in order, each sample once, divided over processes."""

from collections.abc import Iterator

from torch.utils.data import DistributedSampler


class EvalSampler(DistributedSampler[int]):
    """All samples in order; each process gets a contiguous share of the same length.

    The last shares are filled with samples from the beginning, so that no process waits for another. Keep the index of
    each sample and drop repeated samples before computing a score: a repeated sample is its own nearest neighbour.
    """

    def __init__(self, num_samples: int, rank: int = 0, world_size: int = 1) -> None:
        super().__init__(range(num_samples), num_replicas=world_size, rank=rank, shuffle=False)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[int]:
        first = self.rank * len(self)
        return (position % len(self.dataset) for position in range(first, first + len(self)))  # type: ignore[arg-type]
