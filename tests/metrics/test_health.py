"""Similarity means against all pairs, effective rank by hand, and PCA against scikit-learn's."""

import math

import numpy as np
import pytest
import torch
from sklearn import decomposition

from levelfield.metrics import PCA, embedding_health
from levelfield.metrics.health import effective_rank


def test_similarities_equal_a_loop_over_all_pairs():
    generator = torch.Generator().manual_seed(0)
    embeddings, labels = torch.randn(40, 6, generator=generator), torch.arange(40) % 7 * 3
    unit = torch.nn.functional.normalize(embeddings.double(), dim=1)
    pairs = [(float(unit[i] @ unit[j]), bool(labels[i] == labels[j])) for i in range(40) for j in range(i)]
    intra, inter = [s for s, same in pairs if same], [s for s, same in pairs if not same]
    health = embedding_health(embeddings, labels)
    assert health.intra_class_similarity == pytest.approx(sum(intra) / len(intra), abs=1e-6)
    assert health.inter_class_similarity == pytest.approx(sum(inter) / len(inter), abs=1e-6)


def test_effective_rank_is_the_number_of_equally_used_directions():
    labels = torch.arange(24) % 2
    assert embedding_health(torch.eye(8).repeat(3, 1), labels).effective_rank == pytest.approx(8)
    spread = embedding_health(torch.eye(8)[:3].repeat(8, 1), labels)
    assert spread.effective_rank == pytest.approx(3, abs=1e-5)
    assert spread.spectrum.tolist() == pytest.approx([1 / 3] * 3 + [0] * 5, abs=1e-6)
    assert embedding_health(torch.ones(24, 8), labels).effective_rank == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("labels", [torch.zeros(4, dtype=torch.int64), torch.arange(4)])
def test_pairs_of_both_kinds_are_needed(labels):
    with pytest.raises(ValueError, match="no pairs of both kinds"):
        embedding_health(torch.rand(4, 3), labels)


@pytest.mark.parametrize("shape", [(40, 6), (6, 40)])
def test_effective_rank_needs_no_labels(shape):
    """As the singular values say; of equal rows, and of rows of zeros, it is 1."""
    embeddings = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    values = torch.linalg.svdvals(torch.nn.functional.normalize(embeddings.double(), dim=1))
    share = values / values.sum()
    assert effective_rank(embeddings) == pytest.approx(math.exp(-float((share * share.log()).sum())), abs=1e-5)
    assert effective_rank(torch.ones(shape)) == pytest.approx(1, abs=1e-6)
    assert effective_rank(torch.zeros(shape)) == 1


def test_pca_equals_scikit_learn_up_to_the_sign_of_a_component():
    generator = torch.Generator().manual_seed(0)
    fitted_on = torch.randn(200, 12, generator=generator) * torch.linspace(3, 0.5, 12) + 4
    applied_to = torch.randn(50, 12, generator=generator)
    reference = decomposition.PCA(5, svd_solver="full").fit(fitted_on.double().numpy())
    ours = PCA(5).fit(fitted_on)
    projected, expected = ours.transform(applied_to).numpy(), reference.transform(applied_to.double().numpy())
    signs = np.sign((projected * expected).sum(axis=0))
    np.testing.assert_allclose(projected, expected * signs, atol=1e-5)
    np.testing.assert_allclose(ours.explained_variance_C, reference.explained_variance_, rtol=1e-9)


@pytest.mark.parametrize(
    ("embeddings", "message"),
    [
        (torch.ones(3, 9), "needs as many embeddings, got 3"),
        (torch.ones(9, 3), "needs as many dimensions, got 3"),
        (torch.full((9, 9), torch.nan), "NaN or infinite"),
        (torch.ones(9), r"shape \(N, D\)"),
    ],
)
def test_mistakes_of_pca_raise(embeddings, message):
    with pytest.raises(ValueError, match=message):
        PCA(4).fit(embeddings)


def test_pca_s_transform_needs_a_fit_of_the_same_dimension():
    with pytest.raises(ValueError, match="before PCA"):
        PCA(1).transform(torch.ones(2, 2))
    with pytest.raises(ValueError, match="fitted on 3 dimensions"):
        PCA(1).fit(torch.rand(5, 3)).transform(torch.ones(2, 2))
