"""Similarity means against all pairs, effective rank by hand, PCA and discriminants against scikit-learn's."""

import math

import numpy as np
import pytest
import torch
from pretended_gpu import any_device
from sklearn import decomposition
from torch.nn.functional import normalize

from levelfield.metrics import PCA, embedding_health
from levelfield.metrics.health import effective_rank

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


@pytest.mark.parametrize("shape", [(40, 6), (6, 40)])
def test_the_spectrum_and_the_effective_rank_are_those_of_the_singular_values(shape):
    """Of equal rows, and of rows of zeros, the rank is 1."""
    embeddings = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    values = torch.linalg.svdvals(normalize(embeddings.double(), dim=1))
    share = values / values.sum()
    rank = pytest.approx(math.exp(-float((share * share.log()).sum())), abs=1e-5)
    health = embedding_health(embeddings, torch.arange(len(embeddings)) % 2)
    assert health.spectrum[: len(share)].tolist() == pytest.approx(share.tolist(), abs=1e-6)
    assert (effective_rank(embeddings), health.effective_rank) == (rank, rank)
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
