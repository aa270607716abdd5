"""Every miner on a pretended GPU, where tensors of two devices do not go together: as in float64 on the CPU."""

import pytest
import torch
from pretended_gpu import pretended_gpu
from test_miners_on_device import (  # noqa: F401 # here on the device below
    batch,
    test_a_draw_by_arrival_follows_the_weights,
    test_a_miner_chooses_what_it_chooses_in_float64_on_the_cpu,
    test_distance_weighted_draws_a_near_negative_for_each_positive_pair,
    there,
)

from levelfield.miners import UniformHistogramMiner


@pytest.fixture
def device():
    with pretended_gpu() as name:
        yield name


@pytest.mark.parametrize("with_reference", [False, True])
def test_uniform_histogram_draws_on_its_device(with_reference, device):
    found = UniformHistogramMiner()(*there(batch(with_reference), device))
    assert all(indices.device.type == device and indices.dtype == torch.long for indices in found)
    assert all(len(indices) > 0 for indices in found)
