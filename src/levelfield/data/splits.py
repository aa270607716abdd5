"""Class-disjoint splits: the test half, and the folds of the training half."""

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from jaxtyping import Int, Shaped

from levelfield.core.errors import UserError
from levelfield.core.seeds import seed_of

# Instead of a fold's number: train on all classes of the training half, and validate on none.
NO_FOLD = "none"
Split = Literal["half", "powerful-benchmarker", "official", "vasilev-dyakonov", "random", "random-swapped", "all"]
RANDOM = ("random", "random-swapped")
Fold = tuple[Shaped[np.ndarray, " train"], Shaped[np.ndarray, " val"]]

MIN_VALIDATION_CLASSES = 2
IN_GROUPS = " in at least 2 groups (those of a query's class and group leave its gallery)"


def split_classes(
    labels: Shaped[np.ndarray, " samples"] | Sequence[int] | Sequence[str],
    variant: Split = "half",
    official_test_classes: Shaped[np.ndarray, " test"] | Sequence[int] | Sequence[str] | None = None,
    seed: int = 0,
) -> tuple[Shaped[np.ndarray, " trainval"], Shaped[np.ndarray, " test"]]:
    """Sort the classes in `labels` and split them: `(training and validation classes, test classes)`.

    `half` and `powerful-benchmarker` take the first half for training; with an odd number, the extra class is a test
    class. `official` tests on `official_test_classes`. `vasilev-dyakonov` draws halves like "Deep Metric Learning: Loss
    Functions Comparison": scikit-learn's GroupShuffleSplit, half, random_state 0. `random` takes the first half in the
    order of the SHA-256 of `split/<seed>/<position among the sorted classes>`, and `random-swapped` tests on that half.
    The official split of Stanford Online Products differs from `half` by one class: label 11317 is officially a
    training class and a test class in `half`. `all` has no test class, for a final model.

    Args:
        seed: seed of `random` and `random-swapped`; other variants ignore it.

    Raises:
        UserError: an unknown variant, or no official split.

    Example:
        >>> split_classes([7, 3, 5, 3, 9])
        (array([3, 5]), array([7, 9]))
        >>> split_classes([7, 3, 5, 3, 9], "official", [3, 9])
        (array([5, 7]), array([3, 9]))
    """
    _check_variant(variant)
    classes = np.unique(np.asarray(labels))
    if variant == "all":
        return classes, classes[:0]
    if variant == "official":
        if official_test_classes is None:
            raise UserError(
                "this data set has no official class-disjoint split: leave --data.split out (or give a table a column "
                "split with train and test)"
            )
        tested = np.isin(classes, np.asarray(official_test_classes))
        return classes[~tested], classes[tested]
    if variant == "vasilev-dyakonov":
        from sklearn.model_selection import GroupShuffleSplit  # takes a second to import

        shuffle = GroupShuffleSplit(n_splits=1, train_size=0.5, random_state=0)
        train, test = next(shuffle.split(classes, groups=classes))
        return classes[np.sort(train)], classes[np.sort(test)]
    half = len(classes) // 2
    if variant in RANDOM:
        classes = _shuffled(classes, "split", seed)
    first, second = np.sort(classes[:half]), np.sort(classes[half:])
    return (second, first) if variant == "random-swapped" else (first, second)


def class_folds(
    trainval_classes: Shaped[np.ndarray, " trainval"] | Sequence[int] | Sequence[str],
    num_folds: int = 4,
    variant: Split = "half",
    seed: int = 0,
    fold_seed: int | None = None,
) -> list[Fold]:
    """Cut the sorted classes into contiguous blocks; fold k is `(train_classes, val_classes)`, validating block k.

    The folds cover every class, larger blocks first. `variant="powerful-benchmarker"` has the folds of the Reality
    Check program: fold k starts at class `int(k * n / num_folds)`, trains on the next `n - n // num_folds` classes
    (cyclically) and validates the `n // num_folds` classes after them. So fold 0 validates the last block, and if n is
    not a multiple of `num_folds`, no fold validates the remaining classes. The random variants first shuffle the
    classes by `seed`, because neighbours in the alphabet are often similar; with a `fold_seed` every variant does.

    Raises:
        UserError: fewer than 2 validation classes in a fold, fewer than 2 folds, or an unknown variant.

    Example:
        >>> [val.tolist() for _, val in class_folds(range(9))]
        [[0, 1, 2], [3, 4], [5, 6], [7, 8]]
        >>> [val.tolist() for _, val in class_folds(range(9), variant="powerful-benchmarker")]
        [[7, 8], [0, 1], [2, 3], [4, 5]]
    """
    _check_variant(variant)
    classes = np.unique(np.asarray(trainval_classes))
    if num_folds < 2:
        raise UserError(f"num_folds is {num_folds}: give 2 or more (--data.fold none trains on all classes)")
    if len(classes) < MIN_VALIDATION_CLASSES * num_folds:
        raise UserError(
            f"{len(classes)} classes in the training half are too few for {num_folds} folds: "
            f"{num_folds} folds need {MIN_VALIDATION_CLASSES * num_folds} there, "
            f"{2 * MIN_VALIDATION_CLASSES * num_folds} classes in all; add classes or lower num_folds"
        )
    shuffled_by = seed if fold_seed is None and variant in RANDOM else fold_seed
    if shuffled_by is None and variant == "powerful-benchmarker":
        num_val = len(classes) // num_folds
        folds = []
        for k in range(num_folds):
            turned = np.roll(classes, -(k * len(classes) // num_folds))
            folds.append((np.sort(turned[:-num_val]), np.sort(turned[-num_val:])))
        return folds
    blocks = np.array_split(classes if shuffled_by is None else _shuffled(classes, "folds", shuffled_by), num_folds)
    return [(np.sort(np.concatenate(blocks[:k] + blocks[k + 1 :])), np.sort(blocks[k])) for k in range(num_folds)]


def joined_classes(
    labels: Int[np.ndarray, " samples"], groups: Int[np.ndarray, " samples"], num_classes: int
) -> Int[np.ndarray, " classes"]:
    """A number for each class, the same for classes that a chain of groups joins; ascending by their first class.

    Example:
        >>> joined_classes(np.array([0, 1, 1, 2, 3]), np.array([5, 6, 7, 5, 8]), 4)
        array([0, 1, 0, 2])
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    size = num_classes + int(groups.max(initial=-1)) + 1
    joins = coo_matrix((np.ones(len(labels)), (labels, num_classes + groups)), (size, size))
    found = connected_components(joins, directed=False)[1][:num_classes]
    _, first, number = np.unique(found, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[number]


def _shuffled(classes: Shaped[np.ndarray, " classes"], purpose: str, seed: int) -> Shaped[np.ndarray, " classes"]:
    """Shuffled by hashes, because NumPy's generators may change between versions."""
    return classes[sorted(range(len(classes)), key=lambda place: seed_of(purpose, seed, place))]


def _check_variant(variant: str) -> None:
    known = get_args(Split)
    if variant not in known:
        raise UserError(f"no such split {variant!r}: give {', '.join(map(repr, known[:-1]))} or {known[-1]!r}")


def retrievable_classes(
    labels: Int[np.ndarray, " samples"], groups: Int[np.ndarray, " samples"] | None = None
) -> Int[np.ndarray, " classes"]:
    """The classes with a sample that another one can retrieve: with 2 samples, in 2 groups if there are groups."""
    if groups is not None:
        labels = np.unique(np.stack([labels, groups]), axis=1)[0]
    classes, counts = np.unique(labels, return_counts=True)
    return classes[counts >= 2]


def check_validation_classes(
    folds: Sequence[Fold], labels: Int[np.ndarray, " samples"], groups: Int[np.ndarray, " samples"] | None = None
) -> None:
    """Raise an error for folds with fewer than 2 retrievable validation classes.

    Raises:
        UserError: names the fold, and what to do.
    """
    retrievable, several = retrievable_classes(labels, groups), "" if groups is None else IN_GROUPS
    for k, (_, val_classes) in enumerate(folds):
        found = int(np.isin(val_classes, retrievable).sum())
        if found < MIN_VALIDATION_CLASSES:
            raise UserError(
                f"fold {k} has {found} validation classes with at least 2 samples{several}, and needs "
                f"{MIN_VALIDATION_CLASSES}: add samples or classes, or lower the number of folds"
            )
