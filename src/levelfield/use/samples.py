"""Samples to embed: a folder of images, a table, a file of texts or a list, with labels if there are any."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any, Literal

from PIL import Image

from levelfield.core.configuration import Config, read_named
from levelfield.core.errors import UserError
from levelfield.core.ledger import Evaluation, begin
from levelfield.data.dataset import TABLES, MetricDataset, Sample, find_file, refuse_problems
from levelfield.data.datasets.image_folder import counts_by_reason, images_below
from levelfield.data.images import as_rgb, image_suffixes, open_image
from levelfield.data.own import dataset_from_path
from levelfield.data.tables import Table, column_names, content_fault, image_column

Modality = Literal["image", "text"]
COLUMNS = {"image": "path", "text": "text"}
KINDS = {"image": "images", "text": "texts"}
USUAL_TRUNK = {"image": "efficientnet_lite0", "text": "minilm"}  # of configs/trunk


class Given:
    """Opens a sample that is given directly, or an image file; images of Pillow are read like their files."""

    def load(self, key: Any) -> Sample:
        if isinstance(key, Path):
            return open_image(key)
        if isinstance(key, Image.Image):
            return as_rgb(lambda: key, str(getattr(key, "filename", "") or "an image of the list"))
        return key


@dataclass(frozen=True)
class Samples:
    """Samples in order.

    Attributes:
        names: the file of each sample as in the folder or table; of a text, the text itself.
        keys: the key of each sample for `source`.
        modality: of all samples.
        labels: the class of each sample, `""` without one; None if the data have no labels.
        source: opens the samples.
        data: the data set, folder or table that they are from.
        notes: a line for each omission or likely mistake.
    """

    names: tuple[str, ...]
    keys: tuple[Any, ...]
    modality: Modality
    labels: tuple[str, ...] | None = None
    source: Any = field(default_factory=Given)
    notes: tuple[str, ...] = ()
    data: Any = None


def read_trunk(name: str) -> Config:
    """The settings of `--trunk NAME`: a file of configs/trunk, or your own.

    Raises:
        UserError: there is no such file, or it sets no trunk.
    """
    settings = read_named(name, "--trunk", "trunk")
    if "trunk" not in settings.get("model", {}):
        raise UserError(f"--trunk {name} sets no model.trunk: give a file such as configs/trunk/minilm.yaml")
    return settings


def samples_of(data: Any, modality: Modality | None, origin: object) -> Samples:
    """The samples of `data` for a checkpoint.

    Args:
        data: a folder of images, in class folders or not; a table with a column `path` or `text`, and `label` if
            there are labels; an image; a `.txt` file with one text per line; or a list of files, images or texts.
        modality: modality of the checkpoint; None if unknown.
        origin: the checkpoint, for errors.

    Raises:
        UserError: there are no such samples.
    """
    if isinstance(data, str | Path):
        samples = _of_path(str(data), find_file(data, None), modality, origin)
    elif isinstance(data, MetricDataset):
        samples = of_dataset(data)
    elif isinstance(data, Sequence):
        samples = _of_list(data, modality)
    else:
        raise UserError(f"data of type {type(data).__name__}: give a folder, a table or a list")
    if modality not in (None, samples.modality):
        raise UserError(f"'{origin}' takes {KINDS[str(modality)]}, but {_named(data)} has {KINDS[samples.modality]}")
    if not samples.keys:
        raise UserError(f"{_named(data)} has no {KINDS[samples.modality]}")
    return replace(samples, data=data)


def of_dataset(dataset: MetricDataset) -> Samples:
    """All samples of a data set, labelled."""
    index = dataset.read_index()
    labels = tuple(index.class_names[label] for label in index.labels.tolist())
    keys = tuple(index.keys)
    names = tuple(str(dataset.load(key)) for key in keys) if dataset.modality == "text" else keys
    return Samples(names, keys, dataset.modality, labels, dataset, data=dataset)


def of_texts(given: Iterable[str], place: Callable[[int], str]) -> Samples:
    """Texts without outer blanks, as in a table.

    Args:
        place: names the text at a position, for errors.

    Raises:
        UserError: a text that a table must not have either: empty, not UTF-8 or with a NUL byte.
    """
    texts = tuple(text.strip() for text in given)
    refuse_problems(
        [f"{place(at)}: {fault}" for at, text in enumerate(texts) if (fault := content_fault("text", text))]
    )
    return Samples(texts, texts, "text")


def record_labelled(samples: Samples, by: str, checkpoints: Mapping[str, str], embedded: Sequence[int]) -> None:
    """Write a line into the ledger if the samples have labels: embeddings with labels can be scored.

    Args:
        by: The command.
        checkpoints: Name to SHA-256 of each.
        embedded: Positions of the samples that could be opened.

    Raises:
        UserError: the line cannot be written.
    """
    if samples.labels is None:
        return
    dataset = samples.data if isinstance(samples.data, MetricDataset) else dataset_from_path(str(samples.data))
    assert dataset is not None  # nothing else has labels
    names = [samples.names[position] for position in embedded]
    if samples.modality == "text":
        hashes = [hashlib.sha256(text.encode()).hexdigest() for text in names]
    else:
        hashes = list(dataset.contents_of([str(PurePath(name)) for name in names]))
    begin(Evaluation(dataset.name, hashes, by, checkpoints))


def _named(data: Any) -> str:
    return str(data) if isinstance(data, str | Path) else f"the {type(data).__name__} of data"


def _of_path(given: str, path: Path, modality: Modality | None, origin: object) -> Samples:
    suffix = path.suffix.lower()
    if path.is_dir():
        return in_folder(path)
    if not path.exists():
        raise UserError(f"no file or folder '{given}': give a folder, a .csv or .parquet table, an image or a .txt")
    if path.name.lower().endswith(TABLES):
        return _in_table(path, modality, origin)
    if suffix == ".txt":
        content = path.read_text(encoding="utf-8-sig", errors="surrogateescape")
        # Not `splitlines`, which also splits at other characters within a text.
        return of_texts(content.rstrip().split("\n"), lambda number: f"{path}, row {number + 1}")
    if suffix in image_suffixes():
        return Samples((given,), (path,), "image")
    raise UserError(f"{path}: give a folder, a .csv or .parquet table, an image or a .txt file with one text per line")


def in_folder(folder: Path) -> Samples:
    """The images in a folder and its subfolders; the class of an image is its top-level folder.

    Raises:
        UserError: there are no images.
    """
    left_out: Counter[str] = Counter()
    names = tuple(sorted(images_below(folder, "", left_out)))
    if not names:
        raise UserError(f"no images in {folder}; supported are {', '.join(sorted(image_suffixes()))}")
    beside = sum("/" not in name for name in names)
    labels = None if beside else tuple(name.partition("/")[0] for name in names)
    notes = [*counts_by_reason(left_out)]
    if 0 < beside < len(names):
        notes.append(f"{beside:,} images are next to the folders in {folder}, so the folders give no labels")
    return Samples(names, tuple(folder / name for name in names), "image", labels, notes=tuple(notes))


def _in_table(table: Path, modality: Modality | None, origin: object) -> Samples:
    columns = column_names(table)
    if "text" not in columns and image_column(table):
        raise UserError(f"{table} has the images themselves: give their files, listed in a column path")
    kind: Modality = modality or ("image" if "path" in columns else "text")
    column = COLUMNS[kind]
    other = "text" if kind == "image" else "path"
    if column not in columns and other in columns:
        raise UserError(
            f"{table} has no column {column}, which '{origin}' needs for {KINDS[kind]}; it has {', '.join(columns)}"
        )
    found = Table(table, (column,), ("label",))
    refuse_problems(found.problem_lines)
    names, *labels = (tuple(values.to_pylist()) for values in found.rows.columns[1:])
    return Samples(names, tuple(table.parent / name for name in names) if kind == "image" else names, kind, *labels)


def _of_list(data: Sequence[Any], modality: Modality | None) -> Samples:
    is_text = modality == "text"
    for number, each in enumerate(data):
        if not isinstance(each, str if is_text else str | Path | Image.Image):
            wanted = "texts" if is_text else "files or Pillow images"
            raise UserError(f"sample {number} of the list is a {type(each).__name__}: give a list of {wanted}")
    if is_text:
        return of_texts(data, lambda number: f"sample {number} of the list")
    names = tuple(str(number) if isinstance(each, Image.Image) else str(each) for number, each in enumerate(data))
    keys = (each if isinstance(each, Image.Image) else find_file(each, None) for each in data)
    return Samples(names, tuple(keys), "image")
