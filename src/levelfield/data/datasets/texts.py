"""The base class of data sets of texts: read and checked as a whole, and identified by their content."""

import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from levelfield.core.errors import UserError
from levelfield.data.dataset import MetricDataset
from levelfield.data.datasets.table import number_classes, refuse_problems
from levelfield.data.index import SampleIndex


class LabelledText(NamedTuple):
    """A text, its position in the files, and the name of its class."""

    key: str
    text: str
    label: str


class TextDataset(MetricDataset):
    """Texts, kept in memory since the index was last read."""

    modality = "text"

    _texts: Mapping[str, str] | None = None

    @abstractmethod
    def read_texts(self) -> tuple[SampleIndex, Sequence[str], list[str]]:
        """The index and the texts of all usable samples, and a line for each other sample.

        Raises:
            UserError: a file is missing or cannot be read.
        """

    def read_index(self) -> SampleIndex:
        """Keys, labels and class names as currently on disk.

        Raises:
            UserError: a file is missing or cannot be read, or a text cannot be used.
        """
        index, problems = self.read_all()
        refuse_problems(problems)
        return index

    def read_all(self) -> tuple[SampleIndex, list[str]]:
        index, texts, problems = self.read_texts()
        self._texts = self.texts_by_key(index.keys, texts)
        return index, problems

    def texts_by_key(self, keys: Sequence[str], texts: Sequence[str]) -> Mapping[str, str]:
        """The mapping from key to text."""
        return dict(zip(keys, texts, strict=True))

    def load(self, key: str) -> str:
        if self._texts is None:
            self.read_index()
        assert self._texts is not None
        if key not in self._texts:
            raise UserError(f"{type(self).__name__} has no text {key}: its files have changed; start the command again")
        return self._texts[key]

    def file_of(self, key: str) -> Path | None:
        return None  # a text is a part of a file

    def content_of(self, key: str) -> str:
        return hashlib.sha256(self.load(key).encode()).hexdigest()


def index_of(samples: list[LabelledText]) -> tuple[SampleIndex, list[str]]:
    """Index and texts; classes are in the order of their labels."""
    labels, class_names = number_classes(sample.label for sample in samples)
    keys = tuple(sample.key for sample in samples)
    return SampleIndex(keys, labels, class_names), [sample.text for sample in samples]


def read_bytes(file: Path, remedy: str) -> bytes:
    """The content of a file.

    Raises:
        UserError: it cannot be read, or is empty; the message ends with `remedy`.
    """
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        raise UserError(f"no file {file}: {remedy}") from None
    except OSError as error:
        raise UserError(f"cannot read {file} ({error.strerror}): {remedy}") from None
    if not content:
        raise UserError(f"{file} is empty: {remedy}")
    return content
