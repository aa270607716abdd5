"""PCA against scikit-learn's."""

import numpy as np
import pytest
import torch
from sklearn import decomposition

from levelfield.metrics import PCA


def test_equals_scikit_learn_up_to_the_sign_of_a_component():
    generator = torch.Generator().manual_seed(0)
    fitted_on = torch.randn(200, 12, generator=generator) * torch.linspace(3, 0.5, 12) + 4
    applied_to = torch.randn(50, 12, generator=generator)
    reference = decomposition.PCA(5, svd_solver="full").fit(fitted_on.double().numpy())
    ours = PCA(5).fit(fitted_on)
    projected, expected = ours.transform(applied_to).numpy(), reference.transform(applied_to.double().numpy())
    signs = np.sign((projected * expected).sum(axis=0))
    np.testing.assert_allclose(projected, expected * signs, atol=1e-5)
    np.testing.assert_allclose(ours.explained_variance_C, reference.explained_variance_, rtol=1e-9)


def test_is_deterministic_and_keeps_distances_in_the_plane_of_the_data():
    plane = torch.randn(40, 2, generator=torch.Generator().manual_seed(1)) @ torch.tensor([[1.0, 2, 0], [0, 1, 5]])
    once, twice = PCA(2).fit(plane).transform(plane), PCA(2).fit(plane.clone()).transform(plane)
    assert torch.equal(once, twice)
    torch.testing.assert_close(torch.nn.functional.pdist(once), torch.nn.functional.pdist(plane), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("embeddings", "message"),
    [
        (torch.ones(3, 9), "needs as many embeddings, got 3"),
        (torch.ones(9, 3), "needs as many dimensions, got 3"),
        (torch.full((9, 9), torch.nan), "NaN or infinite"),
        (torch.ones(9), r"shape \(N, D\)"),
    ],
)
def test_mistakes_raise(embeddings, message):
    with pytest.raises(ValueError, match=message):
        PCA(4).fit(embeddings)


def test_transform_needs_a_fit_of_the_same_dimension():
    with pytest.raises(ValueError, match="before PCA"):
        PCA(1).transform(torch.ones(2, 2))
    with pytest.raises(ValueError, match="fitted on 3 dimensions"):
        PCA(1).fit(torch.rand(5, 3)).transform(torch.ones(2, 2))
