"""The images or texts of a study's test samples, if the data set is available."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from levelfield.analysis.data_here import data_here
from levelfield.core.errors import UserError
from levelfield.data.dataset import MetricDataset
from levelfield.data.index import SampleIndex
from levelfield.study.folder import StudyFolder

NOT_HERE = (
    "The data set was not here when this page was written. Set LEVELFIELD_DATA to its folder and run levelfield study "
    "report again."
)
OTHER_SAMPLES = (
    "The data set's files are not the ones that were scored. Restore them and run levelfield study report again."
)


@dataclass(frozen=True)
class ScoredSamples:
    """The test samples in the order of the stored embeddings.

    Args:
        dataset: Loads the samples.
        index: Their keys and labels.
        class_names: By label of the stored embeddings.
    """

    dataset: MetricDataset
    index: SampleIndex
    class_names: tuple[str, ...]

    def load(self, position: int) -> Any:
        """An image or a text.

        Raises:
            UserError: it cannot be opened.
        """
        return self.dataset.load(self.index.keys[position])


def scored_samples(study: StudyFolder, fingerprint: str) -> ScoredSamples | str:
    """The samples that were scored, or a sentence why they cannot be shown. Nothing is scored.

    Args:
        fingerprint: Of the samples that were scored.
    """
    if (data := data_here(study)) is None:
        return NOT_HERE
    try:
        test = data.half("test")
        if data.dataset.fingerprint(test) != fingerprint:
            return OTHER_SAMPLES
    except UserError:
        return NOT_HERE
    names = tuple(test.class_names[label] for label in np.unique(test.labels))
    return ScoredSamples(data.dataset, test, names)
