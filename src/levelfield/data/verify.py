"""Verify a data set: counts, omissions, likely mistakes, samples that do not open, and duplicates."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.pool import ThreadPool

import numpy as np
from jaxtyping import Int

from levelfield.core.errors import UserError
from levelfield.data.dataset import MetricDataset, SampleIndex
from levelfield.data.splits import IN_GROUPS, MIN_VALIDATION_CLASSES, retrievable_classes

MAX_NAMES = 20
MIN_TEST_CLASSES = 2
USUAL_FOLDS = 4
# How programs write a missing label, in lower case.
NO_LABELS = frozenset({"-1", "-1.0", "<na>", "n/a", "na", "nan", "nat", "none", "null"})


@dataclass
class VerifyReport:
    """The result of `verify`; a data set is sound if there are no problems.

    Attributes:
        overview: lines with counts, omissions and likely mistakes.
        problems: a line for each wrong count, and for each sample that cannot be used.
        duplicates: a line with the number of samples with equal content, and one for each; empty if there are none.
            They are no problems: published data sets have some.
    """

    num_classes: int
    num_samples: int
    overview: list[str]
    problems: list[str] = field(default_factory=list)
    duplicates: list[str] = field(default_factory=list)


def verify(dataset: MetricDataset) -> VerifyReport:
    """Compare the counts with the published ones, check a table's split and roles, open and hash every sample."""
    index, unusable = dataset.read_all()
    test_classes = dataset.halves(index)[2]
    report = VerifyReport(len(np.unique(index.labels)), len(index.keys), overview(dataset, index, test_classes))
    for what in ("classes", "samples"):
        found, published = getattr(report, f"num_{what}"), getattr(dataset, f"num_{what}_published")
        report.problems += [] if published in (None, found) else [f"{found} {what} instead of {published}"]
    report.problems += unusable
    if not unusable and (index.test_classes, index.roles) != (None, None):
        try:
            check_test_split(index.select(np.isin(index.labels, test_classes)))
        except UserError as error:
            report.problems.append(str(error))
    digests, dark, faults = open_all(dataset, index.keys)
    report.problems += faults
    if dark and dataset.num_classes_published is None:
        count = counted(len(dark), "image")
        report.overview.append(f"nearly black: {count}, such as {dark[0]}; scale 12 bits in a 16-bit file by 16")
    rotten = "its bytes have changed, but size, times and inode of its file have not: restore it from a copy"
    hashes = (dataset.contents_of([*digests], again) for again in (False, True))
    report.problems += [f"{key}: {rotten}" for key, old, new in zip(digests, *hashes, strict=True) if old != new]
    report.duplicates = duplicates(index, test_classes, digests)
    return report


def open_all(dataset: MetricDataset, keys: Sequence[str]) -> tuple[dict[str, bytes], list[str], list[str]]:
    """The digest of each sample's content, the keys of images that are nearly black, and why others do not open."""
    with ThreadPool() as pool:  # Pillow decodes without Python's global lock
        opened = dict(zip(keys, pool.imap(partial(_open, dataset), keys, chunksize=64), strict=True))
    found = {key: each for key, each in opened.items() if isinstance(each, tuple)}
    digests, dark = {key: each[0] for key, each in found.items()}, [key for key, each in found.items() if each[1]]
    return digests, dark, [str(each) for each in opened.values() if isinstance(each, UserError)]


def _open(dataset: MetricDataset, key: str) -> tuple[bytes, bool] | UserError:
    try:
        sample = dataset.load(key)
    except UserError as error:
        return error
    if isinstance(sample, str):
        return hashlib.sha256(sample.encode()).digest(), False
    content = f"{sample.mode} {sample.size}\n".encode() + sample.tobytes()
    # Values of 12 bits in a file of 16 are below an eighth of white.
    return hashlib.sha256(content).digest(), int(np.max(sample.getextrema())) < 32


def overview(dataset: MetricDataset, index: SampleIndex, test_classes: Int[np.ndarray, " test"]) -> list[str]:
    """The counts; for your own data also a line for each omission and each likely mistake. It opens no sample."""
    lines = [counts_of(dataset.name, index)]
    if dataset.num_classes_published is not None:
        return lines
    trained = len(index.class_names) - len(test_classes)
    folds = trained // MIN_VALIDATION_CLASSES
    counts = np.bincount(index.labels, minlength=len(index.class_names))
    without, single = (np.flatnonzero(counts == held).tolist() for held in (0, 1))
    missing = [label for label, name in enumerate(index.class_names) if name.lower() in NO_LABELS]
    alone: list[int] = []
    if index.roles is not None:
        roles, tested = np.array(index.roles), np.isin(index.labels, test_classes)
        queries, gallery = (index.labels[tested & (roles == role)] for role in ("query", "gallery"))
        alone = np.setdiff1d(queries, gallery).tolist()
    lines += index.left_out
    for labels, what, fate in (
        (without, "class", "without a sample, in no fold"),
        (single, "class", "with one sample, which balanced batches leave out and no score takes as a query"),
        (missing, "class", "whose label usually means a missing one"),
        (alone, "test class", "with queries only, which are not scored"),
    ):
        if labels:
            names = [index.class_names[label] for label in labels]
            more = f" and {len(names) - MAX_NAMES:,} more" if len(names) > MAX_NAMES else ""
            lines.append(f"{counted(len(names), what)} {fate}: {', '.join(names[:MAX_NAMES])}{more}")
    if folds < USUAL_FOLDS:
        enough = f"enough for {folds} folds, fewer than the usual {USUAL_FOLDS}" if folds > 1 else "too few for folds"
        lines.append(f"{counted(trained, 'class')} to train and validate on: {enough}")
    return lines


def counts_of(name: str, index: SampleIndex) -> str:
    """A line with the number of classes that have samples, and the number of samples."""
    found = len(np.unique(index.labels))
    return f"{name}: {counted(found, 'class')}, {counted(len(index.keys), 'sample')}"


def counted(count: int, what: str) -> str:
    """A number and its noun: `1 class`, `1,200 samples`."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}{'es' if what.endswith('s') else 's'}"


def check_test_split(test: SampleIndex) -> None:
    """Raise an error before training if nothing could be retrieved in the test half, from its list only.

    Raises:
        UserError: names a sample, the role or the number of classes, and what to do.
    """
    if not len(test.keys):
        raise UserError(
            "there are no test samples: add them; --data.split all has none; in a table, set the column split to test "
            "for all samples of the test classes, or rename the column to split the classes in halves"
        )
    labels = test.labels
    roles = np.array(test.roles or [""] * len(labels))
    if (roles == "").all():
        if (found := len(retrievable_classes(labels, test.groups))) < MIN_TEST_CLASSES:
            several = "" if test.groups is None else IN_GROUPS
            raise UserError(
                f"{found} test classes have at least 2 samples{several}, but {MIN_TEST_CLASSES} must: add samples or "
                "classes"
            )
        return
    if (roles == "").any():
        without = test.keys[int(np.flatnonzero(roles == "")[0])]
        raise UserError(f"test sample {without} has no role: give each test sample the role query or gallery, or none")
    if not np.isin(labels[roles == "query"], labels[roles == "gallery"]).any():
        raise UserError("no test class has the roles query and gallery: give each class both, or leave the roles out")


def duplicates(
    index: SampleIndex, test_classes: Int[np.ndarray, " test"], digests: Mapping[str, bytes | str]
) -> list[str]:
    """A line with the number of equal samples, and one for each: those in both halves, in several classes, in one."""
    halves = np.where(np.isin(index.labels, test_classes), "test", "training").tolist()
    groups: dict[bytes | str, list[tuple[str, str, str]]] = {}
    for key, label, half in zip(index.keys, index.labels.tolist(), halves, strict=True):
        if key in digests:
            groups.setdefault(digests[key], []).append((key, index.class_names[label], half))
    across, several, within = sorts = list[str](), list[str](), list[str]()
    for group in groups.values():
        if len(group) > 1:
            _, names, in_halves = map(set, zip(*group, strict=True))
            samples = " = ".join(f"{key} ({name}, {half})" for key, name, half in group)
            sort = 0 if len(in_halves) > 1 else 1 if len(names) > 1 else 2
            where = ("both halves", f"{len(names)} classes", "one class")[sort]
            sorts[sort].append(f"  in {where}: {samples}")
    if not (lines := across + several + within):
        return []
    count = f"{counted(len(lines), 'sample')} {'is' if len(lines) == 1 else 'are'} there more than once"
    crossing = f"{len(across) + len(several):,} in several classes, {len(across):,} in both halves"
    return [f"{count}, {crossing}", *lines]
