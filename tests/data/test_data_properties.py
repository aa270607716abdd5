"""What must hold for any labels: of the samplers' batches, and of the splits."""

from collections import Counter
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levelfield.core.errors import UserError
from levelfield.data.samplers import MPerClassBatchSampler, ShuffledBatchSampler, TrainingBatchSampler
from levelfield.data.splits import class_folds, split_classes
from papers.zhai_wu.samplers import ClassBalancedBatchSampler

FEW = settings(max_examples=25, deadline=None, derandomize=True)
SAMPLERS = (MPerClassBatchSampler, ClassBalancedBatchSampler, ShuffledBatchSampler)
LABELS = st.lists(st.integers(1, 9), min_size=6, max_size=14).filter(lambda sizes: sum(size > 1 for size in sizes) >= 3)


def epoch(sampler: TrainingBatchSampler, number: int) -> list[list[tuple[int, int]]]:
    sampler.set_epoch(number)
    return [[(int(draw), draw.number) for draw in batch] for batch in sampler]


@pytest.mark.parametrize("kind", SAMPLERS)
@FEW
@given(sizes=LABELS, classes=st.integers(2, 5), samples=st.integers(1, 4), seed=st.integers(0, 9), again=st.booleans())
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


@FEW
@given(
    classes=st.lists(st.integers(-50, 50), min_size=16, max_size=40, unique=True),
    variant=st.sampled_from(
        ["half", "powerful-benchmarker", "vasilev-dyakonov", "random", "random-swapped", "all", "official"]
    ),
    folds=st.integers(2, 4),
    seed=st.integers(0, 99),
    order=st.randoms(use_true_random=False),
)
def test_splits_and_folds_of_any_classes(classes, variant, folds, seed, order) -> None:
    official = sorted(classes)[::3]
    labels = [label for label in classes for _ in range(3)]
    order.shuffle(labels)
    trainval, test = split_classes(labels, variant, official, seed)
    assert sorted([*trainval, *test]) == sorted(classes)
    assert [*trainval] == sorted(trainval)
    expected = {"all": 0, "official": len(official)}.get(variant, len(classes) - len(classes) // 2)
    assert len(test) == expected
    assert [part.tolist() for part in split_classes(classes, variant, official, seed)] == [*map(list, (trainval, test))]
    found = class_folds(trainval, folds, variant, seed)
    validated = Counter(chain(*(val.tolist() for _, val in found)))
    assert set(validated.values()) <= {1}
    left_out = set(trainval) - validated.keys()
    assert len(left_out) == (len(trainval) % folds if variant == "powerful-benchmarker" else 0)
    sizes = [len(val) for _, val in found]
    assert (len(found), max(sizes) - min(sizes) <= 1) == (folds, True)
    for train, val in found:
        assert sorted([*train, *val]) == trainval.tolist()
    with pytest.raises(UserError):
        class_folds(trainval[: 2 * folds - 1], folds, variant, seed)
