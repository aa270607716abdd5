"""Principal components of embeddings, for baselines that must have a method's dimension.

Shapes: N embeddings, D their dimensions, C components.
"""

import torch
from jaxtyping import Float
from torch import Tensor


class PCA:
    """Projection on the directions of largest variance, fitted on one set and applied to another.

    Deterministic: eigenvectors of the covariance in float64, each signed so that its largest entry is positive.

    Args:
        num_components: dimensions to keep.

    Raises:
        ValueError: at `fit`, fewer embeddings or dimensions than components, or values that are not finite.

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
        self.explained_variance_C: Float[Tensor, " components"] | None = None

    def fit(self, embeddings: Float[Tensor, "items dim"]) -> "PCA":
        """Find mean and components of (N, D) embeddings; returns itself."""
        if embeddings.ndim != 2:
            raise ValueError(f"embeddings must have shape (N, D), not {tuple(embeddings.shape)}")
        num_items, dim = embeddings.shape
        if num_items < self.num_components:
            raise ValueError(f"PCA to {self.num_components} components needs as many embeddings, got {num_items}")
        if dim < self.num_components:
            raise ValueError(f"PCA to {self.num_components} components needs as many dimensions, got {dim}")
        if not torch.isfinite(embeddings).all():
            raise ValueError("embeddings hold NaN or infinite values")
        exact_ND = embeddings.detach().double()
        mean_D = exact_ND.mean(dim=0)
        centred_ND = exact_ND - mean_D
        variances_D, directions_DD = torch.linalg.eigh(centred_ND.T @ centred_ND / max(num_items - 1, 1))
        components_DC = directions_DD.flip(1)[:, : self.num_components]
        largest_C = components_DC.abs().argmax(dim=0, keepdim=True)
        self.mean_D = mean_D
        self.components_DC = components_DC * components_DC.gather(0, largest_C).sign()
        self.explained_variance_C = variances_D.flip(0)[: self.num_components].clamp(min=0)
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
