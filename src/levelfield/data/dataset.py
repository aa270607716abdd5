"""Data sets: the list of their samples (`SampleIndex`), read without opening them, and the base classes."""

import csv
import hashlib
import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from jaxtyping import Bool, Int
from PIL import Image

from levelfield.core.errors import UserError
from levelfield.data.hashes import file_hash, file_hashes
from levelfield.data.images import decode_image, open_image
from levelfield.data.splits import Split, joined_classes, split_classes

TABLES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")


Sample = Image.Image | str
Role = Literal["query", "gallery", ""]
Class = TypeVar("Class")


@dataclass(frozen=True)
class SampleIndex:
    """Keys and labels of samples; labels (N,) int64 index `class_names`.

    Attributes:
        keys: a tuple, or the lazy `Keys` of a table.
        test_classes: labels of the official test classes; None without a class-disjoint official split.
        roles: the role of each sample in the test: query, gallery, or `""` for a training sample; None if each test
            sample is a query among all others.
        left_out: a line for each kind of file or row that is not a sample.
        coarse_names: the coarse class of each class; None without coarse classes.
        positions: the position of each sample in the data set; None for a complete index.
        groups: the group of each sample (a camera, a session) as a number; samples of the query's class and group leave
            its gallery. None without groups.
    """

    keys: Sequence[str]
    labels: Int[np.ndarray, " samples"]
    class_names: tuple[str, ...]
    test_classes: tuple[int, ...] | None = None
    roles: tuple[Role, ...] | None = None
    left_out: tuple[str, ...] = ()
    coarse_names: tuple[str, ...] | None = None
    positions: Int[np.ndarray, " samples"] | None = None
    groups: Int[np.ndarray, " samples"] | None = None

    def coarse_labels(self) -> Int[np.ndarray, " samples"] | None:
        """The coarse class of each sample, numbered in the order of names; None without coarse classes."""
        if self.coarse_names is None:
            return None
        return np.unique(self.coarse_names, return_inverse=True)[1].astype(np.int64)[self.labels]

    def select(
        self, indices: Int[np.ndarray, " chosen"] | Bool[np.ndarray, " samples"] | Sequence[int]
    ) -> "SampleIndex":
        """The samples at `indices` (or where a mask is true); class names and labels stay the same."""
        positions = np.arange(len(self.keys))[np.asarray(indices)] if len(indices) else np.empty(0, np.int64)
        return replace(
            self,
            keys=_taken(self.keys, positions),
            labels=self.labels[positions],
            roles=None if self.roles is None else _taken(self.roles, positions),
            positions=positions if self.positions is None else self.positions[positions],
            groups=None if self.groups is None else self.groups[positions],
        )


def _taken(values: Any, positions: Int[np.ndarray, " chosen"]) -> Any:
    return values[positions] if not isinstance(values, tuple) else tuple(values[i] for i in positions)


def class_order(names: Iterable[str]) -> list[str]:
    """Different names by number if all are whole numbers, else by name."""
    different = set(names)
    whole = all(name.removeprefix("-").isdecimal() for name in different)
    return sorted(different, key=lambda name: (int(name) if whole else 0, name))


def index_of_classes(samples: Iterable[tuple[str, Class]], names: Mapping[Class, str], **further: Any) -> SampleIndex:
    """The index of (key, class) pairs; labels follow the order of `names`. `further` are fields of `SampleIndex`."""
    label_of, listed = {each: label for label, each in enumerate(names)}, list(samples)
    labels = np.array([label_of[each] for _, each in listed], dtype=np.int64)
    return SampleIndex(tuple(key for key, _ in listed), labels, tuple(names.values()), **further)


@dataclass(frozen=True)
class Archive:
    """A published file of a named data set.

    Attributes:
        address: to download it; only the name of the file if the publishers require an agreement or a login.
        size: in bytes; None if unknown.
        sha256: None if the publishers give none.
        gives: the file or folder of the archive to unpack; None for a file that is not unpacked.
    """

    address: str
    size: int | None = None
    sha256: str | None = None
    gives: str | None = None

    @property
    def file(self) -> str:
        return self.address.rpartition("/")[2]

    @property
    def url(self) -> str | None:
        return self.address if "://" in self.address else None

    @property
    def place(self) -> str:
        """The file or folder that the data set reads."""
        return Path(self.gives or self.file).name


def find_file(path: str | Path, root: str | Path | None) -> Path:
    """The file or folder `path`; if it is missing, the one below `root` or `LEVELFIELD_DATA`, if it exists."""
    for base in ("", root, os.environ.get("LEVELFIELD_DATA")):
        if base is not None and os.path.exists(Path(base, path)):  # False for a name that is too long
            return Path(base, path)
    return Path(path)


def refuse_problems(problems: Sequence[str]) -> None:
    """Raise the first problem and count the others, if there are any."""
    if problems:
        others = f" ({len(problems) - 1} more like this)" if len(problems) > 1 else ""
        raise UserError(problems[0] + others)


def _facts(table: str, name: str | None) -> list[dict[str, Any]]:
    """The rows about a data set in a table beside the data sets, without empty values; whole numbers are integers."""
    with (Path(__file__).with_name("datasets") / table).open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.pop("data_set") == name]
    return [{key: int(text) if text.isdecimal() else text for key, text in row.items() if text} for row in rows]


class MetricDataset(ABC):
    """A data set of classes. `__init__` of a subclass stores its arguments and reads nothing.

    The order of samples and classes depends only on their names, never on the file system. In Python a data set is a
    sequence of `(sample, label)` with `labels` and `class_names`.
    """

    name: ClassVar[str]  #: for `levelfield data`
    folder_name: ClassVar[str] = ""  #: below the root, if it is not the name
    inner_folder: ClassVar[str] = ""  #: to read, if the archive has its own folder
    licence: ClassVar[str] = "your own"
    source: ClassVar[str] = "your own"
    modality: ClassVar[Literal["image", "text"]] = "image"  #: what `load` returns; texts need no transform
    own_split_by_default: ClassVar[bool] = False  #: whether that of `SampleIndex.test_classes`, if any, is the default
    splits: ClassVar[str] = "half"  #: its class-disjoint splits, the default first
    archives: ClassVar[tuple[Archive, ...]] = ()  #: that `levelfield data prepare` downloads
    num_classes_published: int | None = None
    num_samples_published: int | None = None
    root: str | Path | None  #: the folder of named data sets; None for data sets with their own paths

    _index: SampleIndex | None = None

    @abstractmethod
    def read_index(self) -> SampleIndex:
        """Keys, labels and class names as currently on disk; opens no sample.

        Raises:
            UserError: missing or malformed files; names them and the remedy.
        """

    def load(self, key: str) -> Sample:
        """One sample: an RGB image or a text; by default `inside`, or the image in its file.

        May run in several threads at once.

        Raises:
            UserError: a file that is missing, truncated or not an image; names it and the remedy.
        """
        content = self.inside(key)
        if isinstance(content, str):
            return content
        file = self.file_of(key)
        assert file is not None, f"{type(self).__name__} needs load(key), or file_of(key) of an image"
        return open_image(file) if content is None else decode_image(content, f"{file}, {key}")

    def inside(self, key: str) -> str | bytes | None:
        """The text of a sample, or the bytes of its image file, if it is a part of a larger file; else None."""
        return None

    def files_folder(self) -> Path | None:
        """The folder to which the keys of samples are relative paths; None if they are no such files."""
        return None

    def file_of(self, key: str) -> Path | None:
        """The file of a sample; None if the program draws it or if it is a part of a file.

        Raises:
            UserError: the file is missing.
        """
        folder = self.files_folder()
        return None if folder is None else folder / key

    def content_of(self, key: str) -> str:
        """SHA-256 of a sample, computed now: of what is `inside` a file, of its own file, or else of the key.

        A data set whose samples are drawn hashes what defines them.

        Raises:
            UserError: the file is missing or cannot be read.
        """
        content = self.inside(key)
        if content is None and (file := self.file_of(key)) is not None:
            return file_hash(file).hex()
        content = key if content is None else content
        return hashlib.sha256(content if isinstance(content, bytes) else content.encode()).hexdigest()

    def contents_of(self, keys: Sequence[str], again: bool = False) -> list[str]:
        """`content_of` of each key; for files it is stored below `LEVELFIELD_CACHE` until the file changes.

        Args:
            again: whether to read all files again, without stored hashes.

        Raises:
            UserError: a file is missing or cannot be read.
        """
        if (paths := self._paths(keys)) is None:
            return [self.content_of(key) for key in keys]
        try:
            return [content.tobytes().hex() for content in file_hashes(paths, again)]
        except UserError:
            for key in keys:
                self.file_of(key)  # it may know the row of a missing file
            raise

    def _paths(self, keys: Sequence[str]) -> list[str] | None:
        """The files whose hashes are the samples' contents; None if one has no such file."""
        own = type(self).content_of is not MetricDataset.content_of
        if own or not len(keys) or self.inside(keys[0]) is not None:
            return None
        folder = self.files_folder()
        # A subclass may have overridden `file_of`.
        if folder is not None and self.file_of(keys[0]) == folder / keys[0]:
            place = os.path.abspath(folder)
            return [os.path.join(place, key) for key in keys]
        paths = [os.path.abspath(file) for file in map(self.file_of, keys) if file is not None]
        return paths if len(paths) == len(keys) else None

    def fingerprint(self, index: SampleIndex, again: bool = False) -> str:
        """SHA-256 of the class names, and of key, class, content and group of the samples in `index` only.

        Args:
            again: whether to read all files again, without stored hashes.

        Raises:
            UserError: a file is missing or cannot be read.
        """
        keys = list(index.keys)
        samples = zip(keys, index.labels.tolist(), self.contents_of(keys, again), strict=True)
        lines = [*index.class_names, *(f"{key}\t{label}\t{content}" for key, label, content in samples)]
        if index.groups is not None:  # each as the place of its first sample here
            _, first, number = np.unique(index.groups, return_index=True, return_inverse=True)
            lines += map(str, first[number].tolist())
        return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()

    def halves(
        self, index: SampleIndex, split: Split | None = None, split_seed: int = 0, keep_groups: bool = False
    ) -> tuple[Split, Int[np.ndarray, " trainval"], Int[np.ndarray, " test"]]:
        """The split, its training and validation classes, and its test classes.

        A class without samples counts only for the boundary of the halves, which must not depend on a test file.

        Args:
            keep_groups: whether classes that share a group are in one half.

        Raises:
            UserError: no official split; no groups, groups that join all classes, or an official split that cuts one.
        """
        official = self.own_split_by_default and index.test_classes is not None
        used: Split = split or ("official" if official else "half")
        units = self.units(index, keep_groups)
        given = None if index.test_classes is None else units[list(index.test_classes)]
        _, tested = split_classes(units, used, given, split_seed)
        is_tested = np.isin(units, tested)
        if used == "official" and is_tested.sum() > len(index.test_classes or ()):
            raise UserError(
                "--data.keep_groups true: a group is in both halves of the official split; give --data.split random or "
                "leave the option out"
            )
        return used, np.setdiff1d(index.labels, np.flatnonzero(is_tested)), np.flatnonzero(is_tested)

    def units(self, index: SampleIndex, keep_groups: bool) -> Int[np.ndarray, " classes"]:
        """What a split keeps whole: the number of each class, or with `keep_groups` that of its joined classes."""
        if not keep_groups:
            return np.arange(len(index.class_names))
        if index.groups is None:
            raise UserError(f"--data.keep_groups true: {self.name} has no groups; give a table with the column group")
        units = joined_classes(index.labels, index.groups, len(index.class_names))
        if not units.any():
            raise UserError("--data.keep_groups true: the groups join all classes, so no split keeps them whole")
        return units

    def read_all(self) -> tuple[SampleIndex, list[str]]:
        """The index of all usable samples, and a line for each other one, for which `read_index` raises an error."""
        return self.read_index(), []

    @property
    def labels(self) -> Int[np.ndarray, " samples"]:
        return self.index().labels

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.index().class_names

    def __len__(self) -> int:
        return len(self.index().keys)

    def __getitem__(self, position: int) -> tuple[Any, int]:
        index = self.index()
        return self.load(index.keys[position]), int(index.labels[position])

    def index(self) -> SampleIndex:
        """The result of `read_index`, which is called once for this object."""
        if self._index is None:
            self._index = self.read_index()
        return self._index


def has_root(kind: type[MetricDataset]) -> bool:
    """Whether a data set is in the folder of named data sets; others are installed with the package."""
    return "root" in inspect.signature(kind).parameters


class NamedDataset(MetricDataset):
    """A named data set in its own folder below `root` or LEVELFIELD_DATA, with the publishers' files as they are.

    A reader checks no rows, because the checksum of an archive guards its content: see `sound`. The counts, licence,
    source and files of a data set of this package are in `datasets/facts.csv` and `datasets/archives.csv`.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        name = vars(cls).get("name")
        for key, fact in next(iter(_facts("facts.csv", name)), {}).items():
            setattr(cls, key, fact)
        cls.archives = tuple(Archive(**file) for file in _facts("archives.csv", name)) or cls.archives

    def __init__(self, root: str | Path | None = None) -> None:
        self.root = root

    def files_folder(self) -> Path:
        return self.named_folder()

    def lines(self, name: str) -> list[str]:
        """The lines of a published list that are not blank; UTF-8 with or without BOM."""
        file = self.named_folder() / name
        with self.sound(file):
            return [line for line in file.read_text("utf-8-sig").split("\n") if line.strip()]

    @contextmanager
    def sound(self, file: Path) -> Iterator[None]:
        """Raise one UserError, which names `file` and the remedy, for whatever a missing or damaged file causes."""
        try:
            yield
        except UserError:
            raise
        except OSError as error:
            reason = error.strerror or error
            raise UserError(f"cannot read {error.filename or file} ({reason}): {self.remedy}") from None
        except Exception as error:  # parsers of damaged files raise anything
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise UserError(f"{file} is damaged ({reason}): {self.remedy}") from error

    @property
    def remedy(self) -> str:
        """What to do about a missing or damaged file of the publishers."""
        if not self.archives:
            return f"download it again from {self.source}"
        folder = self._own_folder()
        unpacked = any(archive.gives and (folder / archive.place).exists() for archive in self.archives)
        move = f"move {folder} away, then " if unpacked else ""
        return f"{move}download it again: levelfield data prepare {self.name}"

    def named_folder(self) -> Path:
        """The folder that is read; a UserError if there is none, or no root."""
        return self._own_folder() / self.inner_folder

    def _own_folder(self) -> Path:
        name = self.folder_name or self.name
        given = self.root if self.root is not None else os.environ.get("LEVELFIELD_DATA")
        if not given:
            raise UserError(f"{name} needs a folder: give --data.root DIR or set LEVELFIELD_DATA, with {name}/ in it")
        folder = Path(given) / name
        if not folder.is_dir():
            raise UserError(
                f"no folder {folder}: give the folder with {name}/ as --data.root DIR or LEVELFIELD_DATA "
                "(levelfield data prepare downloads data sets)"
            )
        return folder


class NamedTextDataset(NamedDataset):
    """A named data set of texts, kept in memory; classes are in the order of their names, or of their numbers."""

    modality = "text"

    _texts: dict[str, str] | None = None

    @abstractmethod
    def read_samples(self, folder: Path) -> Iterable[tuple[str, str, str]]:
        """Key, text and class name of each sample. It may raise anything for a damaged file: see `sound`."""

    def read_index(self) -> SampleIndex:
        folder = self.named_folder()
        with self.sound(folder):
            samples = list(self.read_samples(folder))
        self._texts = {key: text for key, text, _ in samples}
        classes = {name: name for name in class_order(name for *_, name in samples)}
        return index_of_classes(((key, name) for key, _, name in samples), classes)

    def inside(self, key: str) -> str:
        if self._texts is None:
            self.read_index()
        assert self._texts is not None
        if key not in self._texts:
            raise UserError(f"{type(self).__name__} has no text {key}: its files have changed; start the command again")
        return self._texts[key]
