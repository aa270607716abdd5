"""Loaders of test samples that write a line into the ledger before the first batch."""

from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist
from torch.utils.data import DataLoader

from levelfield.core.errors import UserError, refused_file
from levelfield.core.ledger import Evaluation, begin
from levelfield.data.dataset import MetricDataset


class RecordedLoader(DataLoader):
    """Batches of test samples. Each pass is an evaluation, and its line is in the ledger before the first batch.

    If several processes evaluate together, the first writes the line.

    Args:
        of: The data set of the samples.
        evaluation: Id of the line in the ledger, if the caller has written it. None writes a line for each pass.
        together: Whether all processes of the group share each pass; then they wait for the line.

    Raises:
        UserError: the line cannot be written; raised on every waiting process.
    """

    def __init__(
        self, *args: Any, of: MetricDataset, evaluation: str | None = None, together: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.of = of
        self.evaluation = evaluation
        self.together = together

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        # A generator, because a Trainer gets the iterator before its callbacks write a line, and the batches after it.
        if self.evaluation is None:
            self._record()
        yield from super().__iter__()

    def sample_hashes(self) -> list[str]:
        """A hash of each sample, as in the ledger."""
        return list(self.of.contents_of(self.dataset.index.keys))  # type: ignore[attr-defined] # of a ClassSubset

    def _record(self) -> None:
        def line() -> str:
            return begin(Evaluation(self.of.name, self.sample_hashes(), by="test_dataloader"))

        if self.together:
            first_process_does(line)
        elif not _in_group() or dist.get_rank() == 0:
            line()


def first_process_does(work: Callable[[], str]) -> str:
    """The result of `work` in the first process of the group. All processes get it, or all raise its error.

    Raises:
        UserError: `work` raised a UserError.
        RuntimeError: `work` raised another error, in another process.
    """
    if not _in_group():
        return work()
    outcome: list[Any] = [None, None]
    failed: Exception | None = None
    if dist.get_rank() == 0:
        try:
            outcome[0] = work()
        except Exception as error:
            failed = (refused_file(error) if isinstance(error, OSError) else None) or error
            outcome[1] = isinstance(failed, UserError), str(failed)
    dist.broadcast_object_list(outcome)  # if only the first process raised the error, the others would wait for it
    if failed is not None:
        raise failed
    if outcome[1] is not None:
        is_mistake, line = outcome[1]
        raise (UserError if is_mistake else RuntimeError)(line)
    return outcome[0]


def _in_group() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
