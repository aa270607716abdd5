"""Whitening of embeddings within their classes.

Shapes: N embeddings, D their dimensions.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from levelfield.metrics.pca import PCA


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
