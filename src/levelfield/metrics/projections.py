"""Linear projections of embeddings: principal components, whitening within classes, linear discriminants.

Shapes: N embeddings, D their dimensions, C components.
"""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor


class PCA:
    """Projection on the directions of largest variance, fitted on one set and applied to another.

    Deterministic: scikit-learn's eigenvectors of the covariance in float64, each signed so that its largest entry is
    positive.

    Args:
        num_components: dimensions to keep.

    Raises:
        ValueError: at `fit`, fewer embeddings or dimensions than components, or values that are not finite; at
            `transform`, embeddings of another dimension.

    Example:
        >>> reduced = PCA(1).fit(torch.tensor([[0.0, 0.0], [3.0, 4.0]])).transform(torch.tensor([[6.0, 8.0]]))
        >>> reduced
        tensor([[7.5000]])
    """

    def __init__(self, num_components: int) -> None:
        if num_components < 1:
            raise ValueError(f"num_components={num_components} must be at least 1")
        self.num_components = num_components
        self.mean_D: Float[Tensor, " dim"] | None = None
        self.components_DC: Float[Tensor, "dim components"] | None = None

    def fit(self, embeddings: Float[Tensor, "items dim"]) -> "PCA":
        """Find mean and components of (N, D) embeddings; returns itself."""
        from sklearn import decomposition  # takes a second

        if not torch.isfinite(embeddings).all():
            raise ValueError("embeddings hold NaN or infinite values")
        exact_ND = embeddings.detach().cpu().double()
        self.mean_D = exact_ND.mean(dim=0)
        # Centred before: scikit-learn subtracts the square of the mean, which cancels digits.
        found = decomposition.PCA(self.num_components, svd_solver="covariance_eigh")
        found.fit((exact_ND - self.mean_D).numpy())
        self.components_DC = torch.from_numpy(found.components_).T
        return self

    def transform(self, embeddings: Float[Tensor, "items dim"]) -> Float[Tensor, "items components"]:
        """Project (N, D) embeddings to (N, C) float32, on their own device."""
        if self.mean_D is None or self.components_DC is None:
            raise ValueError("PCA.transform before PCA.fit")
        if embeddings.ndim != 2 or embeddings.shape[1] != len(self.mean_D):
            raise ValueError(f"fitted on {len(self.mean_D)} dimensions, got shape {tuple(embeddings.shape)}")
        device = embeddings.device
        centred_ND = embeddings.detach().double() - self.mean_D.to(device)
        return (centred_ND @ self.components_DC.to(device)).float()


def whitened_components(
    embeddings: Float[Tensor, "items dim"], labels: Int[Tensor, " items"], size: int
) -> Float[Tensor, "dim size"]:
    """W V: V are the first `size` principal components of the embeddings x W. float64; errors as below."""
    whitening_DD = within_class_whitening(embeddings, labels)
    pca = PCA(size).fit(embeddings.double() @ whitening_DD)
    assert pca.components_DC is not None
    return whitening_DD @ pca.components_DC


def within_class_whitening(
    embeddings: Float[Tensor, "items dim"], labels: Int[Tensor, " items"]
) -> Float[Tensor, "dim dim"]:
    """W = S^-1/2: the embeddings x W of a class vary equally in all directions. Symmetric, float64.

        S = (1 - s) S_w + s trace(S_w) / D I    S_w = 1/N sum_i (x_i - m_{y_i}) (x_i - m_{y_i})^T

    m_c is the mean of a class. scikit-learn's `ledoit_wolf` chooses s in [0, 1] (Ledoit & Wolf 2004,
    https://doi.org/10.1016/S0047-259X(03)00096-4): it minimises the expected squared error of S, as if the N
    differences from class means were independent.

    Raises:
        ValueError: shapes that do not match, values that are not finite, or no difference within any class.
    """
    from sklearn.covariance import ledoit_wolf  # takes a second

    if embeddings.ndim != 2 or labels.shape != embeddings.shape[:1]:
        raise ValueError(f"embeddings of shape {tuple(embeddings.shape)}, labels of shape {tuple(labels.shape)}")
    if not torch.isfinite(embeddings).all():
        raise ValueError("embeddings hold NaN or infinite values")
    exact_ND = embeddings.detach().double()
    _, classes_N, counts_C = labels.unique(return_inverse=True, return_counts=True)
    sums_CD = exact_ND.new_zeros(len(counts_C), exact_ND.shape[1]).index_add_(0, classes_N, exact_ND)
    within_ND = exact_ND - (sums_CD / counts_C[:, None])[classes_N]
    if not within_ND.any():
        raise ValueError("no two embeddings of a class differ")
    shrunk_DD = torch.from_numpy(ledoit_wolf(within_ND.cpu().numpy(), assume_centered=True)[0])
    variances_D, directions_DD = torch.linalg.eigh(shrunk_DD)
    return (directions_DD * variances_D.rsqrt()) @ directions_DD.T


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
