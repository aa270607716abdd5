"""Zhai and Wu's Table 4: batches of 75 with S samples of each of C classes."""

from collections import Counter
from itertools import chain

import numpy as np
import pytest

from levelfield.data.samplers import ClassBalancedBatchSampler, MPerClassBatchSampler
from levelfield.errors import UserError

# 100 classes of 58 or 59 samples: the training half of CUB-200-2011, 5,864 images.
LABELS = np.random.default_rng(0).permutation(np.concatenate([np.repeat(np.arange(100), 58), np.arange(64)]))


def batches(**settings) -> list[list[int]]:
    given = {"labels": LABELS, "batch_size": 75, "num_batches": 8, "replacement": True, **settings}
    return [[draw.index for draw in batch] for batch in ClassBalancedBatchSampler(**given)]


@pytest.mark.parametrize(("s", "c"), [(1, 75), (3, 25), (12, 6), (25, 3), (37, 2), (75, 1)])
def test_the_paper_s_columns_hold(s: int, c: int) -> None:
    for batch in batches(samples_per_class=s):
        assert Counter(Counter(LABELS[batch]).values()) == {s: c}


def test_what_does_not_fit_is_said() -> None:
    sampler = ClassBalancedBatchSampler(LABELS, 75, 12, num_batches=1)
    assert sampler.differences == "batches hold 72 samples instead of 75, 12 of each of 6 classes"
    assert ClassBalancedBatchSampler(LABELS, 75, 25, num_batches=1).differences == ""
    few = ClassBalancedBatchSampler(np.repeat([0, 1, 2], [20, 20, 1]), 75, 12, num_batches=1)
    assert few.differences == (
        "batches hold 24 samples instead of 75, 12 of each of 2 classes; 1 class with one sample left out of training"
    )


@pytest.mark.parametrize("replacement", [False, True])
def test_it_draws_what_m_per_class_draws_where_m_divides_the_batch(replacement: bool) -> None:
    both = [
        [list(batch) for batch in kind(LABELS, 75, 25, num_batches=3, seed=4, replacement=replacement)]
        for kind in (ClassBalancedBatchSampler, MPerClassBatchSampler)
    ]
    assert both[0] == both[1]


def test_without_replacement_a_batch_has_no_sample_twice() -> None:
    assert all(len(set(batch)) == 72 for batch in batches(samples_per_class=12, replacement=False))


def test_processes_share_one_batch_and_epochs_differ() -> None:
    whole = batches(samples_per_class=12, seed=1)
    shares = [batches(samples_per_class=12, seed=1, rank=rank, world_size=2) for rank in range(2)]
    assert [list(chain(*parts)) for parts in zip(*shares, strict=True)] == whole
    sampler = ClassBalancedBatchSampler(LABELS, 75, 12, num_batches=2, seed=1)
    numbers = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        numbers += [draw.number for batch in sampler for draw in batch]
    assert numbers == list(range(2 * 2 * 72))


def test_bad_arguments_are_named() -> None:
    with pytest.raises(UserError, match="samples_per_class 76 is more than batch_size 75"):
        batches(samples_per_class=76)
    with pytest.raises(UserError, match="a batch of 74 cannot be divided by 3 processes"):
        batches(samples_per_class=37, world_size=3)
