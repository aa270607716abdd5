"""The batch samplers' promises: composition, coverage, repetition, and one stream for any number of processes."""

import json
import pickle
from collections import Counter
from hashlib import sha256
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from levelfield.core.errors import UserError
from levelfield.data.samplers import MPerClassBatchSampler, ShuffledBatchSampler
from papers.zhai_wu.samplers import ClassBalancedBatchSampler

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(50), 10))


def numbered(sampler) -> list[list[tuple[int, int]]]:
    return [[(int(draw), draw.number) for draw in batch] for batch in sampler]


def indices(sampler) -> list[list[int]]:
    return [[int(draw) for draw in batch] for batch in sampler]


def epoch(sampler, number: int) -> list[list[tuple[int, int]]]:
    sampler.set_epoch(number)
    return numbered(sampler)


def test_a_copy_and_a_loader_have_the_epoch_that_was_set() -> None:
    sampler = MPerClassBatchSampler(LABELS, 32, 4, num_batches=6)
    first = numbered(sampler)
    sampler.set_epoch(1)
    assert numbered(pickle.loads(pickle.dumps(sampler))) == numbered(sampler) != first
    loader = DataLoader(LABELS, batch_sampler=sampler, collate_fn=list)  # type: ignore[arg-type]
    loader.batch_sampler.sampler.set_epoch(0)  # as Lightning does
    assert (numbered(sampler), len(loader)) == (first, 6)
    samples = TensorDataset(torch.arange(500), torch.from_numpy(LABELS))  # which knows nothing of draws
    for arguments in ({"batch_sampler": sampler}, {"sampler": sampler, "batch_size": None}):
        batches = [index.tolist() for index, _ in DataLoader(samples, **arguments)]  # type: ignore[arg-type]
        assert batches == indices(sampler)


# SHA-256 of the indices and numbers of 36 batches, before the samplers held arrays alone: studies stay what they are.
RECORDED = {
    (MPerClassBatchSampler, 32, 4, False): "07fb69e5a9415779",
    (MPerClassBatchSampler, 32, 4, True): "21671a411a1a6423",
    (ClassBalancedBatchSampler, 30, 7, False): "0df16db66ef06458",
    (ClassBalancedBatchSampler, 30, 7, True): "77d81ebd6c92384e",
    (ShuffledBatchSampler, 32, 4, False): "4aafbed262480214",
}


@pytest.mark.parametrize("given", RECORDED, ids=lambda given: f"{given[0].__name__}-{given[3]}")
def test_draws_are_those_of_the_code_before(given: tuple) -> None:
    kind, batch_size, samples_per_class, replacement = given
    labels = np.random.default_rng(5).choice(40, 300, p=np.arange(1, 41) / 820)  # three classes with one sample
    sampler = kind(labels, batch_size, samples_per_class, num_batches=12, seed=3, replacement=replacement)
    drawn = "".join(json.dumps(epoch(sampler, number)) for number in (0, 1, 5))
    assert sha256(drawn.encode()).hexdigest()[:16] == RECORDED[given]


def test_classes_and_samples_are_drawn_uniformly() -> None:
    drawn = np.concatenate(indices(MPerClassBatchSampler(LABELS, 32, 4, num_batches=2000, seed=5)))
    # A class is in a batch with probability 8/50, a sample of it is taken with probability 4/10: 128 expected of each
    # sample, standard deviation sqrt(2000 * .064 * .936) = 10.9; five of them bound all 500 samples.
    counts = np.bincount(drawn, minlength=len(LABELS))
    assert abs(counts - 128).max() < 55
    classes = np.bincount(LABELS[drawn], minlength=50) / 4
    assert abs(classes - 320).max() < 5 * np.sqrt(2000 * 0.16 * 0.84)


def test_with_replacement_each_sample_is_drawn_from_its_whole_class() -> None:
    """5 of 5 without a repeat in 5! / 5^5 = 3.84% of the classes drawn: about 77 of 2,000, standard deviation 8.6."""
    sampler = MPerClassBatchSampler(np.repeat(np.arange(8), 5), 20, 5, num_batches=500, replacement=True)
    drawn = [batch[i : i + 5] for batch in indices(sampler) for i in range(0, 20, 5)]
    assert all(len({index // 5 for index in of_class}) == 1 for of_class in drawn)
    assert 40 < sum(len(set(of_class)) == 5 for of_class in drawn) < 114


SIZES = st.lists(st.integers(1, 9), min_size=6, max_size=14).filter(lambda sizes: sum(size > 1 for size in sizes) >= 3)


@pytest.mark.parametrize("kind", [MPerClassBatchSampler, ClassBalancedBatchSampler, ShuffledBatchSampler])
@settings(max_examples=25, deadline=None, derandomize=True)
@given(sizes=SIZES, classes=st.integers(2, 5), samples=st.integers(1, 4), seed=st.integers(0, 9), again=st.booleans())
def test_batches_of_any_labels(kind, sizes, classes, samples, seed, again) -> None:
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    shuffled, again = kind is ShuffledBatchSampler, again and kind is not ShuffledBatchSampler
    size = 2 * classes * samples
    sampler = kind(labels, size, samples, num_batches=4, seed=seed, replacement=again)
    first, second = epoch(sampler, 0), epoch(sampler, 1)
    usable = sum(size > 1 for size in sizes)
    drawn_classes = min(2 * classes, usable)
    expected = drawn_classes * samples if kind is ClassBalancedBatchSampler else size
    for batch in (*first, *second):
        assert len(batch) == expected
        counts = Counter(index for index, _ in batch)
        if not shuffled:
            of_class = Counter(labels[index] for index, _ in batch)
            assert len(of_class) == drawn_classes
            assert max(of_class.values()) - min(of_class.values()) <= (kind is MPerClassBatchSampler)
            for label, count in of_class.items():
                assert sizes[label] > 1
                repeats = [counts[index] for index in np.flatnonzero(labels == label)]
                assert again or max(repeats) - min(repeats) <= 1, "each once before any comes again"
                assert again or max(repeats) == -(-count // sizes[label])
    if shuffled:
        stream = [index for index, _ in chain(*first, *second)]
        for start in range(0, len(stream) - len(labels) + 1, len(labels)):
            assert sorted(stream[start : start + len(labels)]) == list(range(len(labels)))
    assert [number for _, number in chain(*first, *second)] == list(range(8 * expected))
    assert [[index for index, _ in batch] for batch in first] != [[index for index, _ in batch] for batch in second]
    assert epoch(kind(labels, size, samples, num_batches=4, seed=seed + 1, replacement=again), 0) != first
    if expected % 2 == 0:
        ranks = [kind(labels, size, samples, 4, seed, rank, 2, again) for rank in (0, 1)]
        shares = [epoch(each, 1) for each in ranks]
        assert [list(chain(*parts)) for parts in zip(*shares, strict=True)] == second
        assert {len(batch) for share in shares for batch in share} == {expected // 2}


def test_what_differs_from_the_request_is_said() -> None:
    fold = np.repeat(np.arange(30), 5)  # a fold of Grocery Store: 30 classes, batches of 32 x 1
    said = MPerClassBatchSampler(fold, 32, 1, num_batches=5).differences
    assert "32 samples of 30 classes instead of 32 of 32" in said
    one = ClassBalancedBatchSampler([*fold, 30], 16, 16, num_batches=1).differences
    assert one == (
        "a batch has one class: a loss that compares samples has no negatives; "
        "1 class with one sample left out of training"
    )


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        (MPerClassBatchSampler, {"batch_size": 30}, "multiple of samples_per_class 4"),
        (MPerClassBatchSampler, {"world_size": 3}, "give 36,"),
        (MPerClassBatchSampler, {"samples_per_class": 1, "world_size": 5}, "give 35"),
        (MPerClassBatchSampler, {"samples_per_class": 0}, "samples_per_class is 0"),
        (MPerClassBatchSampler, {"labels": [0, 0, 0, 1], "batch_size": 8}, "1 training classes"),
        (MPerClassBatchSampler, {"labels": [0, 0, 1, 1], "batch_size": 4}, r"no negatives: give --data\.batch_size 8"),
        (ClassBalancedBatchSampler, {"samples_per_class": 33}, "samples_per_class 33 is more than batch_size 32"),
        (ClassBalancedBatchSampler, {"world_size": 3}, "batch_size 32 cannot be divided by 3 processes: give 36"),
        (ShuffledBatchSampler, {"replacement": True}, r"--data\.replacement"),
    ],
)
def test_bad_arguments_are_named(kind, arguments: dict, message: str) -> None:
    given = {"labels": LABELS, "batch_size": 32, "samples_per_class": 4, "num_batches": 1, **arguments}
    with pytest.raises(UserError, match=message):
        kind(**given)
