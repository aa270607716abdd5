"""Doubts about labels on a pretended GPU, where tensors of two devices do not go together."""

import pytest
from pretended_gpu import pretended_gpu
from test_label_errors import test_each_sample_is_voted_on_by_its_nearest_others  # noqa: F401 # on the device below


@pytest.fixture
def device():
    with pretended_gpu() as name:
        yield name
