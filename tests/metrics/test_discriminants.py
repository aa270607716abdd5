"""Linear discriminants against scikit-learn's own transform."""

import numpy as np
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch.nn.functional import normalize

from levelfield.metrics.projections import linear_discriminants


def test_discriminants_are_scikit_learns_of_centred_features() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(8).repeat_interleave(5)
    features = torch.randn(40, 12, generator=generator) + 2 * torch.randn(8, 12, generator=generator)[labels]
    centred, components = (features - features.mean(0)).double(), linear_discriminants(features, labels, most=128)
    found = normalize(centred @ components)
    assert found.shape == (40, 7)
    lda = LinearDiscriminantAnalysis(solver="eigen", shrinkage="auto").fit(features.double().numpy(), labels.numpy())
    expected = normalize(torch.from_numpy(lda.transform((features.double() - features.double().mean(0)).numpy())))
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=1e-5)
    assert linear_discriminants(features, labels, most=3).shape == (12, 3)
