"""Splits against the published table of the Reality Check's program, by their definition, and of any classes."""

import hashlib
from collections import Counter
from itertools import chain
from pathlib import Path

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csgraph

from levelfield.core.errors import UserError
from levelfield.data import MetricDataModule
from levelfield.data.datasets import TextTable
from levelfield.data.splits import check_validation_classes, class_folds, joined_classes, split_classes

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


# `data.keep_groups`: classes that share a group stay in one half and in one fold.

CLASSES, SAMPLES = 48, 4


def texts(folder: Path, groups: list[str], splits: list[str] | None = None) -> TextTable:
    """Four texts of each class, with the group of each text, and the half of each class."""
    rows = [f"text {n},class {n // SAMPLES:02},{group}" for n, group in enumerate(groups)]
    rows = [f"{row},{splits[n // SAMPLES]}" if splits else row for n, row in enumerate(rows)]
    (folder / "texts.csv").write_text("\n".join(["text,label,group" + ",split" * bool(splits), *rows]))
    return TextTable(folder / "texts.csv")


def chained() -> list[str]:
    """Classes 0 and 9 share a session, 9 and 30 another, 40 and 41 a third; all others have two of their own."""
    groups = [f"own {n // 2}" for n in range(CLASSES * SAMPLES)]
    for shared, members in {"a": (0, 9), "b": (9, 30), "c": (40, 41)}.items():
        for each in members:
            groups[each * SAMPLES + (shared == "b")] = shared
    return groups


@pytest.mark.parametrize("seed", range(5))
def test_joined_classes_are_the_components_of_the_graph_of_classes_and_groups(seed: int, monkeypatch) -> None:
    components = csgraph.connected_components  # which promises no order, though it has one
    monkeypatch.setattr(csgraph, "connected_components", lambda *given, **how: (0, -components(*given, **how)[1]))
    rng = np.random.default_rng(seed)
    labels, groups = rng.integers(0, 30, 60), rng.integers(0, 40, 60)
    graph = networkx.Graph(zip(labels.tolist(), (30 + groups).tolist(), strict=True))
    graph.add_nodes_from(range(30))
    ordered = sorted(({n for n in part if n < 30} for part in networkx.connected_components(graph)), key=min)
    found = joined_classes(labels, groups, 30)
    assert [set(np.flatnonzero(found == number).tolist()) for number in range(len(ordered))] == ordered


@pytest.mark.parametrize("split", ["half", "random", "powerful-benchmarker", "vasilev-dyakonov"])
def test_a_group_is_in_one_half_and_one_fold_with_each_split(split: str, tmp_path: Path) -> None:
    dataset = texts(tmp_path, chained())
    folds = [MetricDataModule(dataset, split=split, fold=fold, keep_groups=True) for fold in range(4)]
    others = [MetricDataModule(dataset, split=split, fold=fold) for fold in range(4)]
    together = [{"class 00", "class 09", "class 30"}, {"class 40", "class 41"}]

    def parts(data: MetricDataModule) -> list[set[str]]:
        found = data.identity()
        return [set(found["train_classes"]), set(found["val_classes"]), set(data.test_classes())]

    for data in folds:
        assert sorted(name for part in parts(data) for name in part) == sorted(dataset.class_names) or split[0] == "p"
        for group in together:
            assert sum(not group.isdisjoint(part) for part in parts(data)) <= 1, group
    cut = [sum(not group.isdisjoint(part) for part in parts(data)) for data in others for group in together]
    assert max(cut) > 1, "without the option a group is cut"


def test_groups_that_no_split_keeps_whole_are_one_line(tmp_path: Path) -> None:
    own, halves = chained(), ["train" if label < 24 else "test" for label in range(CLASSES)]
    few = [f"{n // SAMPLES % 8} {n % 2}" for n in range(len(own))]
    for groups, splits, said in (
        (["one"] * len(own), None, "join all classes"),
        (few, None, "24 classes of the training half into 4, too few for 4 folds"),
        (own, halves, "both halves of the official split"),
    ):
        with pytest.raises(UserError, match=said):
            MetricDataModule(texts(tmp_path, groups, splits), keep_groups=True).setup("fit")
    (tmp_path / "plain.csv").write_text("text,label\na,b\n")
    with pytest.raises(UserError, match="column group"):
        MetricDataModule(TextTable(tmp_path / "plain.csv"), keep_groups=True).setup("fit")
