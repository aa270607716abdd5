"""Checks of inputs before anything is computed."""

import torch
from torch import Tensor


def check_embeddings(embeddings: Tensor, labels: Tensor, name: str, labels_name: str, packed: bool = False) -> None:
    """Raise ValueError unless `embeddings` is a finite (N, D) float tensor (or packed bits) and `labels` N integers."""
    check_shapes(embeddings, labels, name, labels_name, packed)
    finite_N = torch.isfinite(embeddings).all(dim=1)
    if not finite_N.all():
        row = int((~finite_N).nonzero()[0])
        raise ValueError(
            f"{int((~finite_N).sum())} of {len(embeddings)} {name} have NaN or infinite values, the first is row {row}"
        )


def check_shapes(embeddings: Tensor, labels: Tensor, name: str, labels_name: str, packed: bool = False) -> None:
    """`check_embeddings` without a look at the values, for which a GPU would have to finish."""
    is_valid_type = embeddings.is_floating_point() or (packed and embeddings.dtype == torch.uint8)
    if embeddings.ndim != 2 or not is_valid_type:
        raise ValueError(
            f"{name} must be floating point of shape (N, D), not {embeddings.dtype} {tuple(embeddings.shape)}"
        )
    if labels.ndim != 1 or labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"{labels_name} must be integers of shape (N,), not {labels.dtype} {tuple(labels.shape)}")
    if len(embeddings) != len(labels):
        raise ValueError(f"{len(embeddings)} {name} but {len(labels)} {labels_name}")
    if embeddings.numel() == 0:
        raise ValueError(f"{name} is empty: shape {tuple(embeddings.shape)}")
    if embeddings.device != labels.device:
        raise ValueError(f"{name} are on {embeddings.device}, {labels_name} are on {labels.device}")
