"""Similarity means against all pairs, effective rank by hand, PCA and discriminants against scikit-learn's."""

import math

import numpy as np
import pytest
import torch
from pretended_gpu import any_device
from sklearn import decomposition
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch.nn.functional import normalize

from levelfield.metrics import PCA, embedding_health
from levelfield.metrics.health import effective_rank
from levelfield.metrics.projections import linear_discriminants

device = any_device


def test_similarities_equal_a_loop_over_all_pairs():
    generator = torch.Generator().manual_seed(0)
    embeddings, labels = torch.randn(40, 6, generator=generator), torch.arange(40) % 7 * 3
    unit = normalize(embeddings.double(), dim=1)
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


@pytest.mark.parametrize("shape", [(40, 6), (6, 40)])
def test_effective_rank_needs_no_labels(shape):
    """As the singular values say; of equal rows, and of rows of zeros, it is 1."""
    embeddings = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    values = torch.linalg.svdvals(normalize(embeddings.double(), dim=1))
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
    ours_C, theirs_C = ours.components_DC.T.numpy(), reference.components_
    np.testing.assert_allclose(ours_C, theirs_C * np.sign((ours_C * theirs_C).sum(1))[:, None], atol=1e-12)
    assert (ours_C[range(5), np.abs(ours_C).argmax(1)] > 0).all()


def test_health_and_components_are_those_of_the_cpu(device):
    embeddings, labels = torch.randn(300, 24, generator=torch.Generator().manual_seed(0)) + 1, torch.arange(300) % 40
    there = embeddings.to(device)
    health, of_cpu = embedding_health(there, labels.to(device)), embedding_health(embeddings, labels)
    for name in ("intra_class_similarity", "inter_class_similarity", "effective_rank"):
        assert getattr(health, name) == pytest.approx(getattr(of_cpu, name), rel=1e-6)
    torch.testing.assert_close(health.spectrum.cpu(), of_cpu.spectrum)
    reduced = PCA(5).fit(there).transform(there)
    assert reduced.device.type == device
    torch.testing.assert_close(reduced.cpu(), PCA(5).fit(embeddings).transform(embeddings), rtol=1e-4, atol=1e-4)


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
