"""A study's `references:`, rows beside the pretrained baseline that need no gradient either."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from levelfield.errors import UserError

FEATURES, LDA = "features", "lda"
PCA_TO = r"pca([1-9][0-9]*)"


def read_references(path: Path, asked: Any) -> list[str]:
    """The `references:` of the study file `path`: `features`, `lda`, `pca512` or any other number.

    Raises:
        UserError: another name, or one twice.
    """
    names = [] if asked is None else asked if isinstance(asked, list) else [asked]
    for name in names:
        if name not in (FEATURES, LDA) and not re.fullmatch(PCA_TO, str(name)):
            raise UserError(
                f"{path}: references: no reference {name!r}; there are: features, lda, and pca512 with any number"
            )
        if names.count(name) > 1:
            raise UserError(f"{path}: references: {name} is named twice; leave one out")
    return names


def is_reference(name: str | None) -> bool:
    return name in (FEATURES, LDA) or re.fullmatch(PCA_TO, name or "") is not None


def said(names: Sequence[str], baseline: str) -> list[str]:
    """A sentence a reference, for below the table."""
    what = {
        FEATURES: "the features as they are",
        LDA: "projected by a linear discriminant analysis of the training classes (shrunk covariances)",
    }
    size = "reduced by a PCA to {} instead, or as many as there are"
    return [f"{baseline}[{name}]: {what.get(name) or size.format(name.removeprefix('pca'))}." for name in names]
