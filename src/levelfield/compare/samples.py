"""The data of `levelfield compare`: its split, its settings, and the samples that fit and can be opened."""

import shlex
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Int
from pyarrow import parquet

from levelfield.core.configuration import OURS, Config, stack
from levelfield.core.errors import UserError
from levelfield.core.files import write_atomically
from levelfield.core.processes import cores_here
from levelfield.core.seeds import seed_of
from levelfield.core.terminal import say
from levelfield.data.dataset import MetricDataset, SampleIndex, find_file
from levelfield.data.datasets import ImageTable, TextTable
from levelfield.data.splits import MIN_VALIDATION_CLASSES
from levelfield.data.verify import counted, duplicates
from levelfield.study.spec import COUNTS
from levelfield.use.samples import USUAL_TRUNK

MOST_NAMED = 20
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
    kind, key = _of(dataset)
    files = [f"configs/data/{kind}.yaml", f"configs/trunk/{USUAL_TRUNK[dataset.modality]}.yaml"]
    words = [part for file in (*files, "configs/protocol/heads.yaml") for part in ("--config", file)]
    words += ["--model.loss", "NTXentLoss", f"--data.dataset.{key}", path, "--data.fold", "none"]
    fit = shlex.join(["levelfield", "fit", *words])
    raise UserError(
        f"{path} has {counted(classes, 'class')}, {trained} of them to train and validate; compare needs 4 there "
        f"(8 in all): add classes, or only train: {fit}"
    )


def _of(dataset: MetricDataset) -> tuple[str, str]:
    """The file of configs/data for the data, and the argument that names them."""
    if dataset.modality == "text":
        return "own_texts", "table"
    return ("image_folder", "folder") if hasattr(dataset, "folder") else ("own_images", "table")


def data_settings(dataset: MetricDataset, root: Any) -> Config:
    """The section `data` of the study."""
    kind, key = _of(dataset)
    place = str(find_file(getattr(dataset, key), root).resolve())
    own = {"class_path": f"levelfield.data.datasets.{type(dataset).__name__}", "init_args": {key: place}}
    shipped = stack(f"{OURS}data/{kind}.yaml", Path(), "compare")["data"]
    shipped.pop("transforms", None)  # the plan sets the size of images
    return {**shipped, "dataset": own}


def usable(
    path: str, dataset: MetricDataset, split: Config, most: int, skip_broken: bool, chosen: Path
) -> MetricDataset:
    """The data set; or the table `chosen`, which is written, of the samples that fit the time and can be opened.

    Args:
        most: Number of samples that fit; of more, whole classes are left out at random, and of few classes samples.
        chosen: A Parquet file. Each class keeps its half.

    Raises:
        UserError: some cannot be opened, and `skip_broken` is not set.
    """
    index = dataset.read_index()
    tested = dataset.halves(index, **split)[2]
    kept = sampled(index, tested, most)
    if not kept.all():
        say(
            f"note: compare takes {kept.sum():,} of {len(kept):,} samples, with "
            f"{counted(len(np.unique(index.labels[kept])), 'class')} at random; more --minutes takes more",
            file=sys.stderr,
        )
    kept[_broken(path, dataset, index, kept, skip_broken)] = False
    if kept.all():
        return dataset
    write_atomically(chosen, _table(dataset, index, tested, kept.nonzero()[0].tolist()))
    return (TextTable if dataset.modality == "text" else ImageTable)(chosen)


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


def duplicates_across(path: str, dataset: MetricDataset, split: Config) -> list[str]:
    """Lines that name files or texts with equal content in several classes or in both halves; empty without any."""
    index = dataset.index()
    contents = dict(zip(index.keys, dataset.contents_of(index.keys), strict=True))
    _, *lines = duplicates(index, dataset.halves(index, **split)[2], contents) or [""]
    across = [line.strip() for line in lines if not line.startswith("  in one class")]
    more = f" and {len(across) - MOST_NAMED:,} more" if len(across) > MOST_NAMED else ""
    what = f"{counted(len(across), 'sample')} more than once, with different labels or in both halves{more}"
    return [f"note: {path} has {what} (levelfield data verify)", *across[:MOST_NAMED]] if across else []


def _broken(
    path: str, dataset: MetricDataset, index: SampleIndex, kept: Bool[np.ndarray, " samples"], skip_broken: bool
) -> list[int]:
    """Positions of images that cannot be opened. All are tried, because the test half would fail only at the end.

    Raises:
        UserError: there are some, and `skip_broken` is not set.
    """
    positions = kept.nonzero()[0].tolist() if dataset.modality == "image" else []
    with ThreadPoolExecutor(cores_here()) as threads:  # Pillow decodes without Python's global lock
        faults = threads.map(partial(_fault, dataset), (index.keys[position] for position in positions))
        broken = {position: fault for position, fault in zip(positions, faults, strict=True) if fault}
    named = list(broken.values())[:MOST_NAMED]
    if len(broken) > MOST_NAMED:
        named.append(f"and {len(broken) - MOST_NAMED:,} more (all: levelfield data verify {path})")
    say(*named, file=sys.stderr)
    if broken and not skip_broken:
        raise UserError(
            f"{len(broken):,} of {len(positions):,} images in {path} cannot be opened: replace them, or skip them "
            "with --skip-broken"
        )
    if broken:
        say(f"{len(broken):,} of {len(positions):,} images are left out", file=sys.stderr)
    return [*broken]


def _fault(dataset: MetricDataset, key: str) -> str:
    """Why an image cannot be opened; empty if it can."""
    try:
        dataset.load(key)
    except UserError as error:
        return str(error)
    return ""


def _table(dataset: MetricDataset, index: SampleIndex, tested: Int[np.ndarray, " test"], rows: list[int]) -> bytes:
    """A Parquet table of some samples, as they are in a table of the user, or as paths."""
    keys, labels = [index.keys[row] for row in rows], index.labels[rows]
    inside = [dataset.inside(key) for key in keys]
    content = "text" if dataset.modality == "text" else "path" if None in inside else "image"
    columns: dict[str, Any] = {content: [_place(dataset, key) for key in keys] if content == "path" else inside}
    columns |= {"label": [index.class_names[label] for label in labels]}
    columns |= {"split": ["test" if is_tested else "train" for is_tested in np.isin(labels, tested)]}
    columns |= {} if index.roles is None else {"role": [index.roles[row] for row in rows]}
    columns |= {} if index.groups is None else {"group": index.groups[rows]}
    parquet.write_table(pa.table(columns), stream := pa.BufferOutputStream())
    return stream.getvalue().to_pybytes()


def _place(dataset: MetricDataset, key: str) -> str:
    file = dataset.file_of(key)
    assert file is not None  # each sample is an image
    return str(file.parent.resolve() / file.name)  # does not resolve a link to another image
