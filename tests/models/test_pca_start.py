"""An embedder that starts as the PCA: scikit-learn's projection, the study baseline's score, and what is refused."""

import numpy as np
import pytest
import torch
from sklearn import decomposition
from torch import nn

from levelfield.errors import UserError
from levelfield.models import IdentityEmbedder, LinearEmbedder, MLPEmbedder
from levelfield.models.pca_start import check_can_be_pca, start_at_pca


def test_the_layer_is_scikit_learns_projection_up_to_signs() -> None:
    features = torch.randn(50, 12, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 13) + 3
    embedder = LinearEmbedder(12, 5)
    start_at_pca(embedder, features)
    expected = (
        decomposition.PCA(5, svd_solver="full").fit(features.numpy().astype(np.float64)).transform(features.numpy())
    )
    found = embedder(features).detach().numpy()
    signs = np.sign((found * expected).sum(0))
    np.testing.assert_allclose(found, expected * signs, atol=1e-4)
    # Each direction's largest entry is positive.
    assert (embedder.linear.weight.gather(1, embedder.linear.weight.abs().argmax(1, keepdim=True)) > 0).all()
    again = LinearEmbedder(12, 5)
    start_at_pca(again, features)
    assert torch.equal(again.linear.weight, embedder.linear.weight)
    assert torch.equal(again.linear.bias, embedder.linear.bias)


@pytest.mark.parametrize(
    ("embedder", "message"),
    [
        (MLPEmbedder(8, 4), "MLPEmbedder is no single linear layer"),
        (IdentityEmbedder(8, 8), "IdentityEmbedder is no single linear layer"),
        (LinearEmbedder(8, 4, bias=False), r"leave out --model\.embedder\.bias false"),
        (LinearEmbedder(8, 9), r"8 features have no 9 principal components; give --model\.embedding_size 8"),
    ],
)
def test_what_cannot_be_a_pca_is_refused(embedder: nn.Module, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_can_be_pca(embedder, 8)


def test_too_few_or_broken_samples_are_refused() -> None:
    with pytest.raises(UserError, match=r"3 training samples have no 4 principal components"):
        start_at_pca(LinearEmbedder(8, 4), torch.randn(3, 8))
    with pytest.raises(UserError, match="not finite"):
        start_at_pca(LinearEmbedder(2, 1), torch.tensor([[1.0, float("nan")], [0.0, 0.0]]))
