"""A pretended GPU: what raises there, and what moves."""

import pytest
import torch
from pretended_gpu import pretended_gpu
from torch import nn

MIXED = {
    "in place": lambda x, there: torch.ones(3, 4).mul_(x),
    "in place of one number": lambda x, there: torch.zeros(()).add_(x.sum()),
    "rows by the CPU's indices": lambda x, there: x[torch.arange(2)],
    "product": lambda x, there: x @ torch.ones(4, 2),
    "one number in a list": lambda x, there: torch.stack([x.sum(), torch.tensor(0.0)]),
    "layer": lambda x, there: nn.Linear(4, 2)(x),
}


@pytest.mark.parametrize("operation", MIXED)
def test_tensors_of_two_devices_do_not_go_together(operation):
    with pretended_gpu() as there, pytest.raises(RuntimeError, match="same device"):
        MIXED[operation](torch.ones(3, 4, device=there), there)


def test_what_is_on_the_gpu_computes_there_and_comes_back():
    with pretended_gpu() as there:
        x = torch.arange(6.0, device=there).view(2, 3).requires_grad_()
        layer = nn.Linear(3, 2).to(there)
        layer.weight.data.fill_(1.0)
        (layer(x)[x[:, 0] > 1].sum() * torch.tensor(2.0)).backward()
        torch.optim.AdamW(layer.parameters(), lr=0.5, weight_decay=0.0).step()
        assert all(each.device == torch.device("cuda", 0) for each in (x, x.grad, layer.weight, x.new_tensor([1])))
        assert x.grad.tolist() == [[0, 0, 0], [4, 4, 4]]
        assert layer.weight.cpu().tolist() == [pytest.approx([0.5, 0.5, 0.5])] * 2
