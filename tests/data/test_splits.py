"""Splits against the published table of the Reality Check's program, by their definition, and of any classes."""

import hashlib
from collections import Counter
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levelfield.core.errors import UserError
from levelfield.data.splits import check_validation_classes, class_folds, split_classes

# The program's own split manager gave this table: labels, trainval classes, validation blocks of folds 0 to 3 (first
# and last label). No fold validates 25 and 74 of Cars196, and 8487 of SOP.
PROGRAM_FOLDS = {
    "cub200": (range(200), (0, 99), [(75, 99), (0, 24), (25, 49), (50, 74)]),
    "cars196": (range(1, 197), (1, 98), [(75, 98), (1, 24), (26, 49), (50, 73)]),
    "sop": (range(22634), (0, 11316), [(8488, 11316), (0, 2828), (2829, 5657), (5658, 8486)]),
}


@pytest.mark.parametrize("name", PROGRAM_FOLDS)
def test_the_folds_of_powerful_benchmarker(name: str) -> None:
    labels, (first, last), blocks = PROGRAM_FOLDS[name]
    trainval, test = split_classes(np.repeat(labels, 2)[::-1])
    assert trainval.tolist() == list(range(first, last + 1))
    assert test.tolist() == list(range(last + 1, labels[-1] + 1))
    folds = class_folds(trainval, variant="powerful-benchmarker")
    assert [val.tolist() for _, val in folds] == [list(range(first, last + 1)) for first, last in blocks]


def test_the_half_split_has_sorted_names_and_four_blocks_the_larger_first() -> None:
    trainval, test = split_classes(["wren", "jay", "owl", "jay", "tit", "rook"])
    assert (trainval.tolist(), test.tolist()) == (["jay", "owl"], ["rook", "tit", "wren"])
    folds = class_folds(np.arange(1, 99))  # 98 = 25 + 25 + 24 + 24, counted by hand
    assert [(val[0], val[-1], len(val)) for _, val in folds] == [(1, 25, 25), (26, 50, 25), (51, 74, 24), (75, 98, 24)]


def test_what_cannot_be_split_is_refused() -> None:
    with pytest.raises(UserError, match="num_folds"):
        class_folds(range(9), num_folds=1)
    for variant in ("half", "powerful-benchmarker"):
        trainval, _ = split_classes(np.arange(16))
        assert [len(val) for _, val in class_folds(trainval, variant=variant)] == [2, 2, 2, 2]
        with pytest.raises(UserError, match="16 classes in all"):
            class_folds(split_classes(np.arange(15))[0], variant=variant)
    for split in (split_classes, class_folds):
        with pytest.raises(UserError, match="'random', 'random-swapped' or 'all'"):
            split(np.arange(8), variant="thirds")
    with pytest.raises(UserError, match=r"--data\.split"):
        split_classes(np.arange(8), "official")  # the data set has none
    folds, labels = class_folds(np.arange(8)), np.repeat(np.arange(8), 2)
    check_validation_classes(folds, labels)
    with pytest.raises(UserError, match="fold 1 has 1 validation classes"):
        check_validation_classes(folds, np.delete(labels, np.flatnonzero(labels == 3)[0]))
    check_validation_classes(folds, labels, np.tile([0, 1], 8))
    with pytest.raises(UserError, match="1 has 1 validation classes with at least 2 samples in at least 2 groups"):
        check_validation_classes(folds, labels, np.array([0, 1] * 3 + [1, 1] + [0, 1] * 4))


def by_hash(classes: list[int], purpose: str, seed: int) -> list[int]:
    return sorted(classes, key=lambda c: hashlib.sha256(f"{purpose}/{seed}/{classes.index(c)}".encode()).digest())


@pytest.mark.parametrize("seed", [0, 7])
def test_a_random_split_is_the_order_of_hashes(seed: int) -> None:
    classes = list(range(3, 44))  # 41: the odd one is tested
    trainval, test = split_classes(classes, "random", seed=seed)
    assert trainval.tolist() == sorted(by_hash(classes, "split", seed)[:20])
    assert test.tolist() == sorted({*classes} - {*trainval.tolist()})
    exchanged = split_classes(classes, "random-swapped", seed=seed)
    assert [half.tolist() for half in exchanged] == [test.tolist(), trainval.tolist()]
    shuffled = by_hash(trainval.tolist(), "folds", seed)
    folds = class_folds(trainval, variant="random", seed=seed)
    assert [val.tolist() for _, val in folds] == [sorted(shuffled[5 * k : 5 * k + 5]) for k in range(4)]
    for variant in ("half", "random", "powerful-benchmarker"):
        again = class_folds(trainval, variant=variant, seed=9, fold_seed=seed)
        assert [val.tolist() for _, val in again] == [val.tolist() for _, val in folds]


def test_the_official_split_of_sop_moves_one_class() -> None:
    """Its training list ends with class 11317 where the labels count from 0, and so has 11,318 classes."""
    trainval, test = split_classes(np.arange(22634), "official", range(11318, 22634))
    assert set(trainval) - set(split_classes(np.arange(22634))[0]) == {11317}
    assert (len(trainval), len(test)) == (11318, 11316)
    assert [len(val) for _, val in class_folds(trainval, variant="official")] == [2830, 2830, 2829, 2829]


@settings(max_examples=25, deadline=None, derandomize=True)
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
