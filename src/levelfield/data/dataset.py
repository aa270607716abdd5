"""The base class of data sets: an index of keys and labels, read without opening samples, and a way to open one."""

import hashlib
import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Int
from PIL import Image

from levelfield.core.errors import UserError
from levelfield.data.content_hashes import file_state, kept_hashes, number_of, sample_hash
from levelfield.data.datasets.archives import Archive
from levelfield.data.datasets.table import refuse_problems
from levelfield.data.datasets.table_rows import Coded
from levelfield.data.duplicates import Duplicate, content_digest, duplicates_of
from levelfield.data.images import is_nearly_black, open_image
from levelfield.data.index import Sample, SampleIndex
from levelfield.data.overview import counted, counts_of, remarks_on
from levelfield.data.sealed_half import check_test_half
from levelfield.data.splits import Split, split_classes


@dataclass
class VerifyReport:
    """The result of `MetricDataset.verify`; a data set is sound if there are no problems."""

    name: str
    num_classes: int
    num_samples: int
    overview: list[str] = field(default_factory=list)
    """Counts and omissions as lines: `levelfield.data.overview`."""
    problems: list[str] = field(default_factory=list)
    duplicates: list[Duplicate] = field(default_factory=list)
    """Not problems: published data sets have duplicates."""

    @property
    def ok(self) -> bool:
        return not self.problems


class MetricDataset(ABC):
    """A data set of classes. `__init__` of a subclass stores its arguments and reads nothing.

    The order of samples and classes depends only on their names, never on the file system. In Python a data set is a
    sequence of `(sample, label)` with `labels` and `class_names`, from an index that is read once; all other methods
    read it again.
    """

    name: ClassVar[str]
    """Name for `levelfield data`."""
    folder_name: ClassVar[str] = ""
    """Folder below the root, if it is not the name."""
    inner_folder: ClassVar[str] = ""
    """Subfolder to read, if the archive has its own folder."""
    licence: ClassVar[str] = "your own"
    source: ClassVar[str] = "your own"
    modality: ClassVar[Literal["image", "text"]] = "image"
    """What `load` returns; texts reach the trunk without a transform."""
    own_split_by_default: ClassVar[bool] = False
    """Whether the split of `SampleIndex.test_classes`, if there is one, is the default."""
    splits: ClassVar[str] = "half"
    """Its class-disjoint splits, the default first."""
    archives: ClassVar[tuple[Archive, ...]] = ()
    """The files that `levelfield data prepare` downloads."""
    num_classes_published: ClassVar[int | None] = None
    num_samples_published: ClassVar[int | None] = None

    root: str | Path | None
    """Folder of named data sets; None for data sets with their own paths."""

    _index: SampleIndex | None = None
    _kept: dict[Any, Any] | None = None
    _watched: dict[str, int] | None = None

    @abstractmethod
    def read_index(self) -> SampleIndex:
        """Keys, labels and class names as currently on disk; opens no sample.

        Raises:
            UserError: missing or malformed files; names them and the remedy.
        """

    @abstractmethod
    def load(self, key: str) -> Sample:
        """One sample: an RGB image or a text. May run in another thread.

        Raises:
            UserError: a file that is missing, truncated or not an image; names it and the remedy.
        """

    def read_metadata(self, index: SampleIndex) -> Mapping[str, Coded]:
        """Further columns of the samples by their names, as text, in the order of `index`; a table has some."""
        return {}

    def file_of(self, key: str) -> Path | None:
        """The file of a sample, or the archive that contains it; None if the program draws it.

        Raises:
            UserError: the file is missing.
        """
        return None

    def content_of(self, key: str) -> str:
        """SHA-256 of a sample, computed now: of the bytes of its file, or of the key without a file.

        A data set whose samples are drawn, or are parts of a file, hashes what defines them.

        Raises:
            UserError: the file is missing or cannot be read.
        """
        file = self.file_of(key)
        return hashlib.sha256(key.encode()).hexdigest() if file is None else sample_hash(file)

    def contents_of(self, keys: Sequence[str], again: bool = False) -> Iterator[str]:
        """`content_of` of each key; for files it is stored below `LEVELFIELD_CACHE` until the file changes.

        Args:
            again: whether to read all files again, without stored hashes.

        Raises:
            UserError: a file is missing or cannot be read; or, except with `again`, `verify` found it rotten.
        """
        contents, rotten = self._contents(keys, again)
        refuse_problems([] if again else rotten)
        return contents

    def _contents(self, keys: Sequence[str], again: bool) -> tuple[Iterator[str], list[str]]:
        """`contents_of`, and a line for each rotten file."""
        names, states = np.empty((2, len(keys)), np.uint64)
        first = last = ""
        for i, key in enumerate(keys):
            file = self.file_of(key)
            if file is None:
                return map(self.content_of, keys), []
            path = os.path.abspath(file)
            names[i], states[i] = number_of(path, key), file_state(path)
            first, last = min(first or path, path), max(last, path)
            if self._watched is not None:
                self._watched[path] = int(states[i])
        folder = os.path.commonpath([first, last]) if first else ""
        found, rotten = kept_hashes(folder, names, states, lambda i: self.content_of(keys[i]), again)
        fault = "its bytes have changed, but size, times and inode of its file have not: restore it from a copy"
        lines = [f"{keys[i]}: {fault}" for i in np.flatnonzero(rotten).tolist()]
        return (content.tobytes().hex() for content in found), lines

    def fingerprint(self, index: SampleIndex, again: bool = False) -> str:
        """SHA-256 of the class names, and of key, class and content of the samples in `index` only.

        Args:
            again: whether to read all files again, without stored hashes.

        Raises:
            UserError: a file is missing or cannot be read.
        """
        digest = hashlib.sha256("".join(f"{name}\n" for name in index.class_names).encode())
        for key, label, content in zip(index.keys, index.labels, self.contents_of(index.keys, again), strict=True):
            digest.update(f"{key}\t{label}\t{content}\n".encode())
        return digest.hexdigest()

    def index_files(self) -> list[Path]:
        """Files and folders that change when the list of samples changes, as far as known."""
        return []

    def default_split(self, index: SampleIndex) -> Literal["half", "official"]:
        """The default split."""
        return "official" if self.own_split_by_default and index.test_classes is not None else "half"

    def test_classes(
        self, index: SampleIndex, split: Split | None = None, split_seed: int = 0
    ) -> Int[np.ndarray, " test"]:
        """Labels of the test half of a split, by default of the default split."""
        return self.halves(index, split, split_seed)[2]

    def halves(
        self, index: SampleIndex, split: Split | None = None, split_seed: int = 0
    ) -> tuple[Split, Int[np.ndarray, " trainval"], Int[np.ndarray, " test"]]:
        """The split, its training and validation classes, and its test classes.

        A class without samples counts only for the boundary of the halves, which must not depend on a test file.
        """
        used: Split = split or self.default_split(index)
        classes = np.arange(len(index.class_names))
        trainval_classes, test_classes = split_classes(classes, used, index.test_classes, split_seed)
        return used, trainval_classes[np.isin(trainval_classes, index.labels)], test_classes

    def overview(self, index: SampleIndex, split: Split | None = None, split_seed: int = 0) -> list[str]:
        """The counts; for your own data also a line for each remark."""
        own = self.num_classes_published is None
        remarks = remarks_on(index, self.test_classes(index, split, split_seed), split) if own else []
        return [counts_of(self.name, index), *remarks]

    def expected_counts(self) -> tuple[int | None, int | None]:
        """Numbers of classes and samples that `verify` expects; None if unknown."""
        return self.num_classes_published, self.num_samples_published

    def read_all(self) -> tuple[SampleIndex, list[str]]:
        """The index of all usable samples, and a line for each other one, for which `read_index` raises an error."""
        return self.read_index(), []

    def verify(self) -> VerifyReport:
        """Compare the counts with the published ones, check a table's split and roles, open and hash every sample."""
        index, problems = self.read_all()
        report = VerifyReport(self.name, len(np.unique(index.labels)), len(index.keys), self.overview(index))
        counts = ("classes", report.num_classes), ("samples", report.num_samples)
        report.problems += [
            f"{found} {what} instead of {published}"
            for (what, found), published in zip(counts, self.expected_counts(), strict=True)
            if published is not None and found != published
        ]
        report.problems += problems
        if not problems and (index.test_classes, index.roles) != (None, None):
            try:
                check_test_half(index, self.test_classes(index))
            except UserError as error:
                report.problems.append(str(error))
        digests, dark = {}, []
        for key in index.keys:
            try:
                sample = self.load(key)
            except UserError as error:
                report.problems.append(str(error))
                continue
            digests[key] = content_digest(sample)
            if isinstance(sample, Image.Image) and is_nearly_black(sample):
                dark.append(key)
        if dark and self.num_classes_published is None:
            report.overview.append(
                f"nearly black: {counted(len(dark), 'image')}, such as {dark[0]}; scale 12 bits in a 16-bit file by 16"
            )
        report.problems += self._contents(list(digests), again=True)[1]
        report.duplicates = duplicates_of(index, self.test_classes(index), digests)
        return report

    @property
    def labels(self) -> Int[np.ndarray, " samples"]:
        return self._cached_index().labels

    @property
    def class_names(self) -> tuple[str, ...]:
        return self._cached_index().class_names

    def __len__(self) -> int:
        return len(self._cached_index().keys)

    def __getitem__(self, position: int) -> tuple[Any, int]:
        index = self._cached_index()
        return self.load(index.keys[position]), int(index.labels[position])

    def keep_list(self) -> None:
        """Read the list of samples and the hashes of files only once from now on, for trainings that take seconds."""
        self._kept, self._watched = {}, {}

    def kept_index(self) -> SampleIndex:
        """`read_index`; after `keep_list` only once."""

        def read() -> SampleIndex:
            if self._watched is not None:
                with suppress(OSError, UserError):  # `read_index` gives the error
                    self._watched |= {str(path): file_state(path) for path in self.index_files()}
            return self.read_index()

        index: SampleIndex = self.once("index", read)
        return index

    def has_changed(self) -> bool:
        """Whether a file that was read since `keep_list` has changed or is missing."""
        try:
            return any(file_state(path) != state for path, state in (self._watched or {}).items())
        except UserError:
            return True

    def once(self, key: Any, read: Callable[[], Any]) -> Any:
        """The result of `read`; after `keep_list` stored under `key`."""
        if self._kept is None:
            return read()
        if key not in self._kept:
            self._kept[key] = read()
        return self._kept[key]

    def _cached_index(self) -> SampleIndex:
        if self._index is None:
            self._index = self.read_index()
        return self._index


def has_root(kind: type[MetricDataset]) -> bool:
    """Whether a data set is in the folder of named data sets; others are installed with the package."""
    return "root" in inspect.signature(kind).parameters


class NamedDataset(MetricDataset):
    """A named data set, in its own folder below `root` or LEVELFIELD_DATA."""

    def __init__(self, root: str | Path | None = None) -> None:
        self.root = root

    def load(self, key: str) -> Sample:
        file = self.file_of(key)
        assert file is not None
        return open_image(file)

    def file_of(self, key: str) -> Path | None:
        return self.named_folder() / key

    def index_files(self) -> list[Path]:
        folder = self.named_folder()
        return [folder, *folder.iterdir()]

    @property
    def remedy(self) -> str:
        """What to do about a missing or broken file of the publishers."""
        folder = self._own_folder()
        unpacked = any(archive.gives and (folder / archive.gives).exists() for archive in self.archives)
        move = f"move {folder} away, then " if unpacked else ""
        return f"{move}download it again: levelfield data prepare {self.name}"

    def named_folder(self) -> Path:
        """The folder of the data set, or the inner folder of its archive.

        Raises:
            UserError: there is no such folder, or no root.
        """
        return self._own_folder() / self.inner_folder

    def _own_folder(self) -> Path:
        name = self.folder_name or self.name
        given = self.root if self.root is not None else os.environ.get("LEVELFIELD_DATA")
        if not given:
            raise UserError(
                f"{name} needs a data folder: give --data.root DIR or set LEVELFIELD_DATA, with {name}/ in it"
            )
        folder = Path(given) / name
        if not folder.is_dir():
            raise UserError(
                f"no folder {folder}: give the folder with {name}/ as --data.root DIR or LEVELFIELD_DATA "
                "(levelfield data prepare downloads data sets)"
            )
        return folder
