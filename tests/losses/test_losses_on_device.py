"""Every loss in float32 on each device against itself in float64 on the CPU, which other files check against loops."""

import copy

import pytest
import torch
from loss_cases import DRAWING, SETTINGS, batch, class_batch, make, needs_classes, shipped, value_and_gradients
from pretended_gpu import any_device
from torch import Tensor

from levelfield import losses
from levelfield.losses import ContrastiveLoss, CrossBatchMemory
from levelfield.miners import MultiSimilarityMiner

device = any_device
SITUATIONS = ("raw", "duplicates", "pairs", "triplets", "repeats", "reference")
CASES = [
    pytest.param(loss, options, id=f"{loss.__name__}-{','.join(options)}")
    for loss in shipped()
    for options in SETTINGS.get(loss.__name__, [{}])
]


def on(device: str, dtype: torch.dtype, *given: Tensor | tuple[Tensor, ...] | None) -> list:
    """The same on a device, its floating-point numbers in another type and ready for gradients."""
    moved: list = []
    for each in given:
        if isinstance(each, tuple):
            moved.append(tuple(on(device, dtype, *each)))
        elif each is None or not each.is_floating_point():
            moved.append(each if each is None else each.to(device))
        else:
            moved.append(each.detach().to(device, dtype).requires_grad_())
    return moved


def assert_close(found: list[Tensor], expected: list[Tensor], value: float = 2e-5, gradient: float = 2e-4) -> None:
    """A loss, then gradients, relative to the largest entry of each."""
    for number, (ours, right) in enumerate(zip(found, expected, strict=True)):
        relative = gradient if number else value
        bound = relative * max(float(right.abs().max()), 1e-3)
        torch.testing.assert_close(ours.double().cpu(), right, rtol=0, atol=bound)


@pytest.mark.parametrize(("loss", "options"), CASES)
def test_a_loss_and_its_gradients_are_those_of_float64_on_the_cpu(loss, options, device):
    compared = 0
    for situation in SITUATIONS:
        case = class_batch(situation, dim=6) if needs_classes(loss) else batch(situation, dim=6)
        torch.manual_seed(0)
        exact = make(loss, **options).double()
        try:
            expected = exact(*case.arguments())
        except ValueError:  # it takes no miner, or no references
            continue
        value, gradients = value_and_gradients(expected, case.x, case.ref, *exact.parameters())
        there = copy.deepcopy(exact).to(device, torch.float32)
        given = on(device, torch.float32, *case.arguments())
        found, found_gradients = value_and_gradients(there(*given), given[0], given[3], *there.parameters())
        assert found.device.type == device
        assert_close([found, *found_gradients], [value, *gradients])
        compared += 1
    assert compared >= 2


@pytest.mark.parametrize("miner", [None, MultiSimilarityMiner()], ids=["everything", "mined"])
def test_a_memory_that_fills_and_wraps_is_that_of_float64_on_the_cpu(miner, device):
    exact = CrossBatchMemory(ContrastiveLoss(), 5, memory_size=20, miner=miner).double()
    there = copy.deepcopy(exact).to(device, torch.float32)
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        x = torch.randn(8, 5, generator=generator, dtype=torch.float64).requires_grad_()
        y = torch.randint(4, (8,), generator=generator)
        given = on(device, torch.float32, x, y)
        value, gradients = value_and_gradients(exact(x, y), x)
        found, found_gradients = value_and_gradients(there(*given), given[0])
        assert_close([found, *found_gradients], [value, *gradients])


RANDOM = [
    pytest.param(getattr(losses, name), DRAWING[name], id=f"{name}-random")
    for name in ("ArcFaceLoss", "MarginLoss", "TripletMarginLoss")
]


@pytest.mark.parametrize(("loss", "options"), RANDOM)
def test_a_loss_that_draws_does_so_on_its_device(loss, options, device):
    made = make(loss, **options).to(device)
    for situation in ("raw", "pairs", "triplets", *([] if needs_classes(loss) else ["reference"])):
        given = on(device, torch.float32, *class_batch(situation, dim=6).arguments())
        value = made(*given)
        value.backward()
        assert {value.device.type, given[0].grad.device.type} == {device}
        assert value.isfinite()
        assert (given[0].grad != 0).any()
