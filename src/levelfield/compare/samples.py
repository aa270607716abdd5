"""The data of `levelfield compare`: its split, its settings, and the samples that fit and can be opened."""

import shlex
import sys
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Int

from levelfield.core.configuration import OURS, Config, stack
from levelfield.core.errors import UserError
from levelfield.core.files import write_atomically
from levelfield.core.seeds import seed_of
from levelfield.core.terminal import say
from levelfield.data.dataset import MetricDataset, SampleIndex, find_file
from levelfield.data.datasets import ImageTable, TextTable
from levelfield.data.splits import MIN_VALIDATION_CLASSES
from levelfield.data.verify import MAX_NAMES, counted, duplicates, open_all
from levelfield.study.spec import COUNTS
from levelfield.use.samples import USUAL_TRUNK

# Class of the data to its file in configs/data, and to the argument that names them.
OWN = {"ImageFolder": ("image_folder", "folder"), "ImageTable": ("own_images", "table")}
OWN |= {"TextTable": ("own_texts", "table")}
FEWEST_CLASSES = 200  # of a sample, for both halves
# Samples for each minute and core, set by hand: 500 images took 4 s of a core. Texts and GPUs were not measured.
A_MINUTE = {("cpu", "image"): 500, ("cpu", "text"): 2000, ("gpu", "image"): 2000, ("gpu", "text"): 20_000}


def split_of(dataset: MetricDataset, overrides: Config) -> Config:
    """A random split of the classes, unless the data or an option give another."""
    keys = ("split", "split_seed", "keep_groups")
    given = {key: overrides[f"data.{key}"] for key in keys if f"data.{key}" in overrides}
    is_given = "split" in given or dataset.halves(dataset.index())[0] == "official"
    return given if is_given else {**given, "split": "random"}


def blocks_of(path: str, dataset: MetricDataset, split: Config) -> int:
    """Blocks of classes that a fold can validate.

    Raises:
        UserError: too few classes for two blocks; names the command that still works.
    """
    index = dataset.read_index()
    units = dataset.units(index, split.get("keep_groups", False))  # a class, or classes that groups join
    classes, trained = (len(np.unique(each)) for each in (units, np.delete(units, dataset.halves(index, **split)[2])))
    blocks = min(COUNTS["folds"], trained // MIN_VALIDATION_CLASSES)
    if blocks >= 2:
        return blocks
    kind, key = OWN[type(dataset).__name__]
    files = f"data/{kind}", f"trunk/{USUAL_TRUNK[dataset.modality]}", "protocol/heads"
    fit = " ".join(["levelfield fit", *(f"--config configs/{file}.yaml" for file in files), "--model.loss NTXentLoss"])
    raise UserError(
        f"{path} has {counted(classes, 'class')}, {trained} of them to train and validate; compare needs 4 there (8 in "
        f"all): add classes, or only train: {fit} --data.dataset.{key} {shlex.quote(path)} --data.fold none"
    )


def data_settings(dataset: MetricDataset, root: Any) -> Config:
    """The section `data` of the study."""
    kind, key = OWN[type(dataset).__name__]
    place = str(find_file(getattr(dataset, key), root).resolve())
    own = {"class_path": f"levelfield.data.datasets.{type(dataset).__name__}", "init_args": {key: place}}
    shipped = stack(f"{OURS}data/{kind}.yaml", Path(), "compare")["data"]
    shipped.pop("transforms", None)  # the plan sets the size of images
    return {**shipped, "dataset": own}


def usable(
    path: str, dataset: MetricDataset, split: Config, most: int, skip_broken: bool, chosen: Path
) -> MetricDataset:
    """The data set; or the Parquet table `chosen`, which is written, of the samples that fit and can be opened.

    About `most` samples fit. All of these are opened, because a broken image of the test half would fail only at the
    end. It prints the names of broken images, and of samples with equal content in several classes or in both halves.

    Raises:
        UserError: some cannot be opened, and `skip_broken` is not set.
    """
    index = dataset.read_index()
    tested = dataset.halves(index, **split)[2]
    taken, count = index.select(sampled(index, tested, most)), len(index.keys)
    if len(taken.keys) < count:
        classes = counted(len(np.unique(taken.labels)), "class")
        note = f"note: compare takes {len(taken.keys):,} of {count:,} samples, with {classes} at random"
        say(f"{note}; more --minutes takes more", file=sys.stderr)
    digests, _, faults = open_all(dataset, taken.keys)
    if faults:
        say(*_first(faults, path), file=sys.stderr)
        broken = f"{len(faults):,} of {len(taken.keys):,} images"
        if not skip_broken:
            raise UserError(f"{broken} in {path} cannot be opened: replace them, or skip them with --skip-broken")
        say(f"{broken} are left out", file=sys.stderr)
        taken = taken.select(np.array([key in digests for key in taken.keys]))
    lines = duplicates(taken, tested, digests)[1:]
    if across := [line.strip() for line in lines if not line.startswith("  in one class")]:
        what = f"{counted(len(across), 'sample')} more than once, with different labels or in both halves"
        say(f"note: {path} has {what}", *_first(across, path), file=sys.stderr)
    if len(taken.keys) == count:
        return dataset
    write_atomically(chosen, _table(dataset, taken, tested))
    return (TextTable if dataset.modality == "text" else ImageTable)(chosen)


def _first(lines: Sequence[str], path: str) -> list[str]:
    more = len(lines) - MAX_NAMES
    return [*lines[:MAX_NAMES], *([f"and {more:,} more (all: levelfield data verify {path})"] if more > 0 else [])]


def sampled(index: SampleIndex, tested: Int[np.ndarray, " test"], most: int) -> Bool[np.ndarray, " samples"]:
    """Which of about `most` samples a comparison takes: the same share of the classes of both halves.

    At least `FEWEST_CLASSES` stay, if there are as many; then each class keeps as many samples as fit, at least 2.
    """
    labels, share = index.labels, most / max(1, len(index.keys))
    if share >= 1:
        return np.ones(len(labels), bool)
    order = sorted(np.unique(labels).tolist(), key=lambda label: seed_of("compare", label))
    share = max(share, min(1.0, FEWEST_CLASSES / len(order)))
    halves = [[label for label in order if (label in tested) == side] for side in (False, True)]
    taken = [label for half in halves for label in half[: ceil(share * len(half))]]
    each = max(2, most // len(taken)) if np.isin(labels, taken).sum() > most else len(labels)
    kept = np.zeros(len(labels), bool)
    for label in taken:
        positions = np.flatnonzero(labels == label)
        spread = np.linspace(0, len(positions) - 1, min(each, len(positions))).round().astype(int)
        kept[positions[spread]] = True
    return kept


def _table(dataset: MetricDataset, index: SampleIndex, tested: Int[np.ndarray, " test"]) -> bytes:
    """A Parquet table of samples, as they are in a table of the user, or as paths."""
    content, values = "text" if dataset.modality == "text" else "image", [dataset.inside(key) for key in index.keys]
    if None in values:
        content, values = "path", [str(file.absolute()) for file in map(dataset.file_of, index.keys) if file]
    columns: dict[str, Any] = {content: values, "label": [index.class_names[label] for label in index.labels]}
    columns |= {"split": np.where(np.isin(index.labels, tested), "test", "train")}
    columns |= {name: each for name, each in (("role", index.roles), ("group", index.groups)) if each is not None}
    return pd.DataFrame(columns).to_parquet(index=False)
