"""The directions that separate classes best (linear discriminant analysis).

Shapes: N embeddings, D their dimensions, C components.
"""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor


def linear_discriminants(
    embeddings: Float[Tensor, "items dim"], labels: Int[Tensor, " items"], most: int
) -> Float[Tensor, "dim components"]:
    """The directions that separate the classes best, by scikit-learn: at most `most`, and fewer than classes.

    The covariance of each class is shrunk (Ledoit and Wolf 2004), because a class has fewer samples than a trunk has
    features. The result is deterministic: float64, with the largest entry of each direction positive.

    Raises:
        ValueError: fewer than two classes.
    """
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis  # takes a second

    if len(labels.unique()) < 2:
        raise ValueError("discriminants need two classes")
    exact_ND, classes_N = embeddings.detach().cpu().double().numpy(), labels.cpu().numpy()
    found = LinearDiscriminantAnalysis(solver="eigen", shrinkage="auto").fit(exact_ND, classes_N)
    count = min(most, exact_ND.shape[1], len(found.classes_) - 1)
    components_DC = found.scalings_[:, :count]
    largest_C = np.abs(components_DC).argmax(axis=0)
    return torch.from_numpy(components_DC * np.sign(components_DC[largest_C, np.arange(count)]))
