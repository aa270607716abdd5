"""Every regularizer on a pretended GPU, where tensors of two devices do not go together: as on the CPU."""

import pytest
import torch
from pretended_gpu import pretended_gpu
from regularizer_cases import EVERY, points


@pytest.mark.parametrize("name", EVERY)
def test_a_penalty_and_its_gradient_are_those_of_the_cpu(name):
    given = points(12, 6).requires_grad_()
    expected = EVERY[name]()(given)
    expected.backward()
    with pretended_gpu() as device:
        there = given.detach().to(device).requires_grad_()
        found = EVERY[name]()(there)
        found.backward()
        assert found.device.type == device
        torch.testing.assert_close(found.cpu(), expected)
        torch.testing.assert_close(there.grad.cpu(), given.grad)
