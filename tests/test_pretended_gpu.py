"""A pretended GPU: what raises there, and what moves."""

import pytest
import torch
from pretended_gpu import pretended_gpu
from torch import nn

MIXED = {
    "add": lambda x, there: x + torch.ones(4),
    "add to one number": lambda x, there: x.sum() + torch.ones(4),
    "in place": lambda x, there: torch.ones(3, 4).mul_(x),
    "in place of one number": lambda x, there: torch.zeros(()).add_(x.sum()),
    "rows by the CPU's indices": lambda x, there: x[torch.arange(2)],
    "the CPU's rows": lambda x, there: torch.ones(5)[torch.arange(2, device=there)],
    "product": lambda x, there: x @ torch.ones(4, 2),
    "one number in a list": lambda x, there: torch.stack([x.sum(), torch.tensor(0.0)]),
    "choice": lambda x, there: torch.where(x > 0, torch.ones(3, 4), 0.0),
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
        optimizer = torch.optim.AdamW(layer.parameters(), lr=0.5, weight_decay=0.0)
        (layer(x)[x[:, 0] > 1].sum() * torch.tensor(2.0)).backward()
        optimizer.step()
        assert all(each.device == torch.device("cuda", 0) for each in (x, x.grad, layer.weight, x.new_tensor([1])))
        assert x.grad.tolist() == [[0, 0, 0], [4, 4, 4]]
        assert layer.weight.cpu().device.type == "cpu"
        assert layer.weight.tolist() == [pytest.approx([0.5, 0.5, 0.5])] * 2
        assert x.nonzero().tolist()[0] == [0, 1]
        kept = torch.zeros(2, device=there)
        kept.copy_(torch.ones(2))
        assert kept.sum().item() == 2
        assert layer.double().weight.mul(2).dtype == torch.float64
