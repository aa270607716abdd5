"""Describe a data set for `data verify`, `fit` and `study`: counts, omissions and likely mistakes."""

import re
import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Int

from levelfield.data.index import SampleIndex
from levelfield.data.splits import MIN_VALIDATION_CLASSES, Split

MOST_NAMES = 20
USUAL_FOLDS = 4
# How programs write a missing label, in lower case.
NO_LABELS = frozenset({"-1", "-1.0", "<na>", "n/a", "na", "nan", "nat", "none", "null"})


def counts_of(name: str, index: SampleIndex) -> str:
    """A line with the number of classes that have samples, and the number of samples."""
    found = len(np.unique(index.labels))
    return f"{name}: {counted(found, 'class')}, {counted(len(index.keys), 'sample')}"


def remarks_on(index: SampleIndex, test_classes: Int[np.ndarray, " test"], split: Split | None = None) -> list[str]:
    """A line for each omission and for each likely mistake in your own data.

    It reads only the list of samples with labels and roles, and opens no sample.

    Args:
        split: the split; None for the default of the data set.
    """
    counts = np.bincount(index.labels, minlength=len(index.class_names))
    lines = list(index.left_out)
    for held, what in ((0, "without a sample, in no fold"), (1, "with one sample, which has no match")):
        names = [name for name, count in zip(index.class_names, counts, strict=True) if count == held]
        if names:
            lines.append(f"{counted(len(names), 'class')} {what}: {listed(names)}")
    if missing := [repr(name) for name in index.class_names if name.lower() in NO_LABELS]:
        lines.append(f"labels that usually mean a missing label are classes: {listed(missing)}")
    lines += _too_few_folds(len(index.class_names) - len(test_classes))
    return [*lines, *_like_labels(index.class_names), *_columns_in_vain(index, test_classes, split)]


def _too_few_folds(trained: int) -> list[str]:
    folds = trained // MIN_VALIDATION_CLASSES
    if folds >= USUAL_FOLDS:
        return []
    enough = f"enough for {folds} folds, fewer than the usual {USUAL_FOLDS}" if folds > 1 else "too few for folds"
    return [f"{counted(trained, 'class')} to train and validate on: {enough}"]


def listed(names: Sequence[str]) -> str:
    """The first names, and the number of the remaining ones."""
    more = f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def counted(count: int, what: str) -> str:
    """A number and its noun: `1 class`, `1,200 samples`."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}{'es' if what.endswith('s') else 's'}"


def _like_labels(names: Iterable[str]) -> list[str]:
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_plain(name), []).append(name)
    like = [" and ".join(map(repr, group)) for group in groups.values() if len(group) > 1]
    if not like:
        return []
    return [f"labels that differ only by case, blanks or leading zeros are different classes: {listed(like)}"]


def _plain(name: str) -> str:
    """A label in lower case without blanks and leading zeros, except those of decimals."""
    letters = "".join(unicodedata.normalize("NFKC", name).casefold().split())
    return re.sub(r"(?<![\d.,])0+(?=\d)", "", letters)


def _columns_in_vain(index: SampleIndex, test_classes: Int[np.ndarray, " test"], split: Split | None) -> list[str]:
    lines = []
    if index.test_classes is not None and split not in (None, "official"):
        lines.append(f"the column split has no effect with the split {split}")
    roles = np.array(index.roles or [""] * len(index.keys))
    tested = np.isin(index.labels, test_classes)
    trained = int(((roles != "") & ~tested).sum())
    if trained:
        lines.append(f"roles outside the test half have no effect: {counted(trained, 'sample')} with one")
    queries, gallery = ({*index.labels[tested & (roles == role)].tolist()} for role in ("query", "gallery"))
    alone = [index.class_names[label] for label in sorted(queries - gallery)]
    if alone:
        lines.append(f"{counted(len(alone), 'test class')} with queries only, which are not scored: {listed(alone)}")
    return lines
