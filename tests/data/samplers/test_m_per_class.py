"""The batch sampler's promises: composition, coverage, repetition, and one stream for any number of processes."""

import pickle
from collections import Counter
from collections.abc import Iterable
from itertools import chain

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from levelfield.data.samplers import Draw, MPerClassBatchSampler
from levelfield.errors import UserError

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(50), 10))


def indices(batches: list[list[Draw]]) -> list[list[int]]:
    return [[draw.index for draw in batch] for batch in batches]


def numbered(batches: Iterable[list[Draw]]) -> list[list[tuple[int, int]]]:
    return [[(draw.index, draw.number) for draw in batch] for batch in batches]


def test_a_batch_has_c_classes_of_m_different_samples() -> None:
    for batch in MPerClassBatchSampler(LABELS, 32, 4, num_batches=50):
        drawn = [draw.index for draw in batch]
        assert len(set(drawn)) == 32
        assert sorted(Counter(LABELS[drawn]).values()) == [4] * 8


def test_classes_and_samples_are_drawn_uniformly() -> None:
    sampler = MPerClassBatchSampler(LABELS, 32, 4, num_batches=2000, seed=5)
    drawn = np.concatenate(indices(list(sampler)))
    # A class is in a batch with probability 8/50, a sample of it is taken with probability 4/10: 128 expected of each
    # sample, standard deviation sqrt(2000 * .064 * .936) = 10.9; five of them bound all 500 samples.
    counts = np.bincount(drawn, minlength=len(LABELS))
    assert abs(counts - 128).max() < 55
    classes = np.bincount(LABELS[drawn], minlength=50) / 4
    assert abs(classes - 320).max() < 5 * np.sqrt(2000 * 0.16 * 0.84)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_processes_share_one_global_batch(world_size: int) -> None:
    whole = numbered(MPerClassBatchSampler(LABELS, 32, 4, num_batches=6, seed=1))
    shares = [
        numbered(MPerClassBatchSampler(LABELS, 32, 4, num_batches=6, seed=1, rank=rank, world_size=world_size))
        for rank in range(world_size)
    ]
    assert {len(batch) for share in shares for batch in share} == {32 // world_size}
    assert [list(chain(*parts)) for parts in zip(*shares, strict=True)] == whole


def test_epochs_differ_and_do_not_depend_on_the_past() -> None:
    sampler = MPerClassBatchSampler(LABELS, 32, 4, num_batches=3, seed=1)
    first = list(sampler)
    sampler.set_epoch(1)
    second = list(sampler)
    assert indices(first) != indices(second)
    resumed = MPerClassBatchSampler(LABELS, 32, 4, num_batches=3, seed=1)
    resumed.set_epoch(1)
    assert numbered(resumed) == numbered(second)
    sampler.set_epoch(0)
    assert numbered(sampler) == numbered(first)
    assert indices(first) != indices(list(MPerClassBatchSampler(LABELS, 32, 4, num_batches=3, seed=2)))


def test_draws_are_numbered_through_the_whole_run() -> None:
    sampler = MPerClassBatchSampler(LABELS, 32, 4, num_batches=3)
    numbers = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        numbers += [draw.number for batch in sampler for draw in batch]
    assert numbers == list(range(2 * 3 * 32))


def test_a_loader_hands_the_epoch_on_as_lightning_does() -> None:
    sampler = MPerClassBatchSampler(LABELS, 8, 2, num_batches=2)
    loader = DataLoader(LABELS, batch_sampler=sampler, collate_fn=list)  # type: ignore[arg-type]
    loader.batch_sampler.sampler.set_epoch(3)  # type: ignore[union-attr]
    assert sampler.epoch == 3
    assert len(loader) == 2


def test_a_small_class_repeats_only_after_all_of_its_samples() -> None:
    labels = [0] * 3 + [1] * 20 + [2] * 20
    for batch in MPerClassBatchSampler(labels, 24, 8, num_batches=20):
        of_small = Counter(draw.index for draw in batch if labels[draw.index] == 0)
        assert sorted(of_small.values()) == [2, 3, 3]
        assert max(Counter(draw.index for draw in batch if labels[draw.index] > 0).values()) == 1
        assert len({draw.number for draw in batch}) == 24


def test_classes_with_one_sample_are_left_out_and_counted() -> None:
    labels = [0, 0, 1, 2, 2, 3, 4, 4]
    sampler = MPerClassBatchSampler(labels, 6, 2, num_batches=10)
    assert sampler.num_left_out == 2
    assert "2 classes with one sample" in sampler.differences
    assert {labels[draw.index] for batch in sampler for draw in batch} == {0, 2, 4}


def test_fewer_classes_than_asked_for_raise_m_and_keep_the_batch_size() -> None:
    # A fold of Grocery Store: 30 classes, batches of 32 x 1.
    sampler = MPerClassBatchSampler(np.repeat(np.arange(30), 5), 32, 1, num_batches=5)
    assert "30 classes instead of 32, with 1.07 samples of each" in sampler.differences
    for batch in sampler:
        assert sorted(Counter(draw.index // 5 for draw in batch).values()) == [1] * 28 + [2] * 2
        assert len({draw.index for draw in batch}) == 32


def test_nothing_is_different_where_there_are_enough_classes() -> None:
    assert MPerClassBatchSampler(LABELS, 32, 4, num_batches=1).differences == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 30, "samples_per_class": 4}, "multiple of samples_per_class 4"),
        ({"batch_size": 32, "samples_per_class": 4, "world_size": 3}, "give 36,"),
        ({"batch_size": 32, "samples_per_class": 0}, "samples_per_class is 0"),
        ({"labels": [0, 0, 0, 1], "batch_size": 8, "samples_per_class": 4}, "1 training classes"),
    ],
)
def test_bad_arguments_are_named(arguments: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        MPerClassBatchSampler(**{"labels": LABELS, "num_batches": 1, **arguments})


def test_it_and_its_draws_pickle() -> None:
    sampler = MPerClassBatchSampler(LABELS, 32, 4, num_batches=2, seed=3)
    assert numbered(pickle.loads(pickle.dumps(sampler))) == numbered(sampler)
    assert numbered(pickle.loads(pickle.dumps(list(sampler)))) == numbered(sampler)


@pytest.mark.parametrize("way", ["batch_sampler", "sampler"])
def test_a_data_set_that_knows_nothing_of_draws_is_indexed(way: str) -> None:
    samples = TensorDataset(torch.arange(500), torch.from_numpy(LABELS))
    sampler = MPerClassBatchSampler(LABELS, 32, 4, num_batches=3)
    arguments = {"batch_sampler": sampler} if way == "batch_sampler" else {"sampler": sampler, "batch_size": None}
    batches = [index.tolist() for index, _ in DataLoader(samples, **arguments)]  # type: ignore[arg-type]
    assert batches == indices(list(sampler))


def test_with_replacement_each_sample_is_drawn_from_its_whole_class() -> None:
    """5 of 5 without a repeat in 5! / 5^5 = 3.84% of the classes drawn: about 77 of 2,000, standard deviation 8.6."""
    sampler = MPerClassBatchSampler(np.repeat(np.arange(8), 5), 20, 5, num_batches=500, replacement=True)
    drawn = [[draw.index for draw in batch[i : i + 5]] for batch in sampler for i in range(0, 20, 5)]
    assert all(len({index // 5 for index in of_class}) == 1 for of_class in drawn)
    assert 40 < sum(len(set(of_class)) == 5 for of_class in drawn) < 114


def test_a_batch_of_one_class_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"a batch of 4 with 4 samples per class has no negatives: give --data\.batch_size 8"
    ):
        MPerClassBatchSampler([0, 0, 1, 1], 4, 4, num_batches=1)
