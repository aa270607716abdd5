"""The pictures or texts of a tested study's test samples, where they are at hand."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from levelfield.analysis.data_here import data_here
from levelfield.data.datasets.base import MetricDataset
from levelfield.data.index import SampleIndex
from levelfield.errors import UserError
from levelfield.study.folder import StudyFolder

NOT_AT_HAND = (
    "The data set's files were not at hand when this page was written: name their folder by LEVELFIELD_DATA and write "
    "the page again with levelfield study report."
)
OTHER_SAMPLES = (
    "The data set's files are no longer those that were scored, so that none is shown: restore them and write the page "
    "again with levelfield study report."
)


@dataclass(frozen=True)
class ScoredSamples:
    """The test samples in the order of the stored embeddings.

    Args:
        dataset: Opens them.
        index: Their keys and labels.
        class_names: By label of the stored embeddings.
    """

    dataset: MetricDataset
    index: SampleIndex
    class_names: tuple[str, ...]

    def load(self, position: int) -> Any:
        """A picture or a text.

        Raises:
            UserError: it cannot be opened.
        """
        return self.dataset.load(self.index.keys[position])


def scored_samples(study: StudyFolder, fingerprint: str) -> ScoredSamples | str:
    """The samples that were scored, or a sentence why they are not shown.

    They are looked up by a study's settings; this is asked for an evaluation that the ledger holds, and scores nothing.

    Args:
        fingerprint: Of the samples that were scored.
    """
    if (data := data_here(study)) is None:
        return NOT_AT_HAND
    try:
        index = data.dataset.read_index()
        test = index.select(np.isin(index.labels, data.dataset.test_classes(index, data.split, data.split_seed)))
        if data.dataset.fingerprint(test) != fingerprint:
            return OTHER_SAMPLES
    except UserError:
        return NOT_AT_HAND
    names = tuple(index.class_names[label] for label in np.unique(test.labels))
    return ScoredSamples(data.dataset, test, names)
