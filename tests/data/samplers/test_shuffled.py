"""Shuffled batches: every sample once a pass, wherever epochs and processes cut the stream."""

from itertools import chain

import numpy as np
import pytest

from levelfield.data.samplers import Draw, ShuffledBatchSampler
from levelfield.errors import UserError

LABELS = np.repeat(np.arange(20), 5)


def epochs(number: int, **settings) -> list[list[list[Draw]]]:
    sampler = ShuffledBatchSampler(**{"labels": LABELS, "batch_size": 8, "samples_per_class": 1, **settings})
    found = []
    for epoch in range(number):
        sampler.set_epoch(epoch)
        found.append([list(batch) for batch in sampler])
    return found


def stream(found: list[list[list[Draw]]]) -> list[Draw]:
    return list(chain(*chain(*found)))


@pytest.mark.parametrize("num_batches", [5, 13, 25])
def test_each_sample_comes_once_before_any_comes_again(num_batches: int) -> None:
    draws = stream(epochs(100 // num_batches, num_batches=num_batches))
    for first in range(0, len(draws) - 99, 100):
        assert sorted(draw.index for draw in draws[first : first + 100]) == list(range(100))
    assert [draw.number for draw in draws] == list(range(len(draws)))


def test_passes_and_seeds_have_orders_of_their_own() -> None:
    first, again = (stream(epochs(4, num_batches=25, seed=seed)) for seed in (0, 1))
    orders = [tuple(draw.index for draw in draws[k : k + 100]) for draws in (first, again) for k in (0, 100, 200)]
    assert len({*orders, tuple(range(100))}) == 7


def test_places_are_uniform() -> None:
    """Of 400 passes sample 0 is in the first half in 200, standard deviation 10."""
    draws = stream(epochs(1, num_batches=5000))
    assert abs(sum(draw.index == 0 for k in range(0, 40_000, 100) for draw in draws[k : k + 50]) - 200) < 50


def test_the_stream_depends_on_no_epoch_s_length() -> None:
    assert stream(epochs(6, num_batches=5)) == stream(epochs(2, num_batches=15)) == stream(epochs(1, num_batches=30))


def test_processes_share_one_batch() -> None:
    whole = epochs(1, num_batches=20)[0]
    shares = [epochs(1, num_batches=20, rank=rank, world_size=4)[0] for rank in range(4)]
    assert [list(chain(*parts)) for parts in zip(*shares, strict=True)] == whole


def test_a_class_with_one_sample_trains() -> None:
    assert {draw.index for draw in stream(epochs(1, labels=[0, 1, 1], batch_size=3, num_batches=1))} == {0, 1, 2}


def test_replacement_is_refused() -> None:
    with pytest.raises(UserError, match=r"--data\.replacement"):
        epochs(1, num_batches=1, replacement=True)
