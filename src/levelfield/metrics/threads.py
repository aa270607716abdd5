"""Parts of a computation in several threads."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

# Products of numbers that take one thread about five milliseconds.
LEAST_SHARED = 2**28
# Does something with each of some jobs.
Each = Callable[[Callable[[Any], None], Iterable[Any]], object]


def num_shares(device: torch.device) -> int:
    """How many jobs are done at a time: as many as torch has threads on the CPU."""
    return torch.get_num_threads() if device.type == "cpu" else 1


def in_turn(do: Callable[[Any], None], jobs: Iterable[Any]) -> None:
    for job in jobs:
        do(job)


@contextmanager
def by_threads(device: torch.device, num_products: int) -> Iterator[Each]:
    """Threads that each compute on one core, and wait for each other once for all jobs.

    Those within torch's operators wait at the end of each operator: ten times as long on a machine that others load.

    Args:
        num_products: of numbers; a few are not worth a second thread.
    """
    num_threads = num_shares(device)
    if num_threads == 1:
        yield in_turn
        return
    try:
        if num_products < LEAST_SHARED:
            torch.set_num_threads(1)
            yield in_turn
            return
        with ThreadPoolExecutor(num_threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield lambda do, jobs: list(pool.map(torch.inference_mode()(do), jobs))
    finally:
        torch.set_num_threads(num_threads)  # the number of later threads, too
