"""The data of `levelfield compare`: its split, its settings, and the images that can be opened."""

import csv
import io
import shlex
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from levelfield.core.configuration import OURS, Config, stack
from levelfield.core.errors import UserError
from levelfield.core.files import write_atomically
from levelfield.core.processes import cores_here
from levelfield.core.terminal import say
from levelfield.data.dataset import MetricDataset, SampleIndex, find_file
from levelfield.data.datasets import ImageTable
from levelfield.data.splits import MIN_VALIDATION_CLASSES
from levelfield.data.verify import counted, duplicates
from levelfield.study.spec import COUNTS
from levelfield.use.samples import USUAL_TRUNK

MOST_NAMED = 20


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
    classes = len(index.class_names)
    trained = classes - len(dataset.halves(index, **split)[2])
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


def unbroken(path: str, dataset: MetricDataset, split: Config, skip_broken: bool, chosen: Path) -> MetricDataset:
    """The data set, or the table `chosen` of those images that can be opened, which is written.

    Raises:
        UserError: some cannot be opened, and `skip_broken` is not set.
    """
    index = dataset.read_index()
    whole = _openable(path, dataset, index, skip_broken)
    if whole.all():
        return dataset
    write_atomically(chosen, _table(dataset, index, split, whole))
    return ImageTable(chosen)


def duplicates_across(path: str, dataset: MetricDataset, split: Config) -> list[str]:
    """Lines that name files or texts with equal content in several classes or in both halves; empty without any."""
    index = dataset.index()
    contents = dict(zip(index.keys, dataset.contents_of(index.keys), strict=True))
    _, *lines = duplicates(index, dataset.halves(index, **split)[2], contents) or [""]
    across = [line.strip() for line in lines if not line.startswith("  in one class")]
    more = f" and {len(across) - MOST_NAMED:,} more" if len(across) > MOST_NAMED else ""
    what = f"{counted(len(across), 'sample')} more than once, with different labels or in both halves{more}"
    return [f"note: {path} has {what} (levelfield data verify)", *across[:MOST_NAMED]] if across else []


def _openable(path: str, dataset: MetricDataset, index: SampleIndex, skip_broken: bool) -> Any:
    """Which samples can be opened. It opens all before training, because the test half would fail only at the end.

    Raises:
        UserError: some cannot, and `skip_broken` is not set.
    """
    broken: dict[int, str] = {}
    if dataset.modality == "image":
        with ThreadPoolExecutor(cores_here()) as threads:  # Pillow decodes without Python's global lock
            faults = threads.map(partial(_fault, dataset), index.keys)
            broken = {position: fault for position, fault in enumerate(faults) if fault}
    named = list(broken.values())[:MOST_NAMED]
    if len(broken) > MOST_NAMED:
        named.append(f"and {len(broken) - MOST_NAMED:,} more (all: levelfield data verify {path})")
    say(*named, file=sys.stderr)
    if broken and not skip_broken:
        raise UserError(
            f"{len(broken):,} of {len(index.keys):,} images in {path} cannot be opened: replace them, or skip them "
            "with --skip-broken"
        )
    if broken:
        say(f"{len(broken):,} of {len(index.keys):,} images are left out", file=sys.stderr)
    return ~np.isin(np.arange(len(index.keys)), list(broken))


def _fault(dataset: MetricDataset, key: str) -> str:
    """Why an image cannot be opened; empty if it can."""
    try:
        dataset.load(key)
    except UserError as error:
        return str(error)
    return ""


def _table(dataset: MetricDataset, index: SampleIndex, split: Config, whole: Any) -> bytes:
    """A table of the images that can be opened; each class keeps its half."""
    tested = set(dataset.halves(index, **split)[2].tolist())
    table = io.StringIO(newline="")
    writer = csv.writer(table)
    writer.writerow(["path", "label", "split", *(["role"] if index.roles else [])])
    for position in whole.nonzero()[0].tolist():
        label = int(index.labels[position])
        role = [index.roles[position]] if index.roles else []
        half = "test" if label in tested else "train"
        writer.writerow([_place(dataset, index.keys[position]), index.class_names[label], half, *role])
    return table.getvalue().encode()


def _place(dataset: MetricDataset, key: str) -> str:
    file = dataset.file_of(key)
    assert file is not None  # each sample is an image
    if file.suffix.lower() == ".parquet":
        raise UserError(f"{file} has the images themselves: remove the rows that cannot be opened from it")
    return str(file.parent.resolve() / file.name)  # does not resolve a link to another image
