"""Principal components of embeddings, for baselines that must have a method's dimension.

Shapes: N embeddings, D their dimensions, C components.
"""

import torch
from jaxtyping import Float
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
