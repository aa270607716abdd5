"""What a baseline makes of a trunk's features without a gradient: a PCA, nothing at all, or a discriminant analysis."""

import re

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from levelfield.metrics.pca import PCA
from levelfield.study.definition.references import FEATURES, LDA, PCA_TO
from levelfield.study.jobs.projection import Projection


def fit_projection(
    reference: str | None,
    features: Float[Tensor, "samples features"],
    labels: Int[Tensor, " samples"],
    embedding_size: int,
) -> Projection:
    """Fit a fold's projection on the features and labels of its training samples.

    Args:
        reference: `features`, `lda` or `pca512`; None for the baseline, a PCA to the methods' size.
        embedding_size: The methods' D.
    """
    if reference == FEATURES:
        return Projection()
    if reference == LDA:
        return linear_discriminants(features, labels, embedding_size)
    match = re.fullmatch(PCA_TO, reference or "")
    size = embedding_size if match is None else int(match[1])
    pca = PCA(min(size, *features.shape)).fit(features)
    return Projection(pca.mean_D, pca.components_DC)


def linear_discriminants(
    features: Float[Tensor, "samples features"], labels: Int[Tensor, " samples"], most: int
) -> Projection:
    """The directions that part the classes best, by scikit-learn; at most `most`, and one fewer than classes.

    Each class's covariance is shrunk as Ledoit and Wolf (2004) say, for a class has fewer samples than the trunk
    features. Deterministic: in float64, each direction signed so that its largest entry is positive.
    """
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis  # takes a second

    exact_NF, classes_N = features.double().numpy(), labels.numpy()
    found = LinearDiscriminantAnalysis(solver="eigen", shrinkage="auto").fit(exact_NF, classes_N)
    count = min(most, exact_NF.shape[1], len(found.classes_) - 1)
    components_FC = found.scalings_[:, :count]
    largest_C = np.abs(components_FC).argmax(axis=0)
    components_FC = components_FC * np.sign(components_FC[largest_C, np.arange(count)])
    return Projection(torch.from_numpy(exact_NF.mean(axis=0)), torch.from_numpy(components_FC))
