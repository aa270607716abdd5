"""Every metric on a pretended GPU, where tensors of two devices do not go together."""

import pytest
import torch
from pretended_gpu import pretended_gpu
from test_metrics_on_device import (  # noqa: F401 # here on the device below
    space,
    test_a_sample_of_the_queries_is_the_same_one,
    test_batches_add_up_to_the_whole,
    test_blocks_of_a_larger_set_score_as_on_the_cpu,
    test_clusters_health_and_components_are_those_of_the_cpu,
    test_every_score_equals_a_loop_in_float64,
    test_queries_and_gallery_stay_apart,
    there,
)

from levelfield.metrics import hierarchical_precision_at_r, verification_metrics


@pytest.fixture
def device():
    with pretended_gpu() as name:
        yield name


@pytest.mark.parametrize(("distance", "with_gallery"), [("cosine", False), ("euclidean", True)])
def test_pairs_and_coarse_classes_are_judged_as_on_the_cpu(distance, with_gallery, device):
    embeddings, labels = space(120, classes=20)
    sets = [embeddings[:50], labels[:50], embeddings[50:], labels[50:]] if with_gallery else [embeddings, labels]
    expected = verification_metrics(*sets, distance=distance)
    found = verification_metrics(*there(tuple(sets), device), distance=distance)
    assert found.scores == pytest.approx(expected.scores, abs=1e-5)
    with_coarse = [part for rows, of in zip(sets[::2], sets[1::2], strict=True) for part in (rows, of, of // 4)]
    ranked = hierarchical_precision_at_r(*there(tuple(with_coarse), device), distance=distance)
    assert ranked.device.type == device
    torch.testing.assert_close(
        ranked.cpu(), hierarchical_precision_at_r(*with_coarse, distance=distance), equal_nan=True
    )
