"""Check that a test half can be scored, from the list of its samples."""

import numpy as np
from jaxtyping import Int

from levelfield.core.errors import UserError
from levelfield.data.index import SampleIndex

MIN_TEST_CLASSES = 2


def check_test_half(index: SampleIndex, test_classes: Int[np.ndarray, " test"]) -> None:
    """Raise an error before training if nothing could be retrieved in the test half.

    It counts samples and roles of the test classes in the rows of a table, or the names of files. It opens no sample
    and stores nothing.

    Raises:
        UserError: names a sample, the role or the number of classes, and what to do.
    """
    if not len(test_classes):
        raise UserError(
            "there are no test classes: --data.split all has none; in a table, set the column split to test for all "
            "samples of the test classes, or rename the column to split the classes in halves"
        )
    tested = np.isin(index.labels, test_classes)
    labels = index.labels[tested]
    roles = np.array(index.roles, dtype=object)[tested] if index.roles is not None else np.full(len(labels), "")
    if (roles == "").all():
        found = int((np.unique(labels, return_counts=True)[1] >= 2).sum())
        if found < MIN_TEST_CLASSES:
            raise UserError(
                f"{found} test classes have at least 2 samples, but {MIN_TEST_CLASSES} must: add samples or classes"
            )
        return
    if (roles == "").any():
        without = index.keys[int(np.flatnonzero(tested)[roles == ""][0])]
        raise UserError(f"test sample {without} has no role: give each test sample the role query or gallery, or none")
    for role in ("query", "gallery"):
        if role not in roles:
            raise UserError(f"no test sample has the role {role}: give it to some, or leave the roles out")
    if not np.isin(labels[roles == "query"], labels[roles == "gallery"]).any():
        raise UserError("no test class has both queries and gallery samples: give each class some of both")
