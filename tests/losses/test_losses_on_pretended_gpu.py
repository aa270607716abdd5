"""Every loss on a pretended GPU, where tensors of two devices do not go together: as in float64 on the CPU."""

import copy

import pytest
import torch
from loss_cases import batch, class_batch, needs_classes
from pretended_gpu import pretended_gpu
from test_losses_on_device import (  # noqa: F401 # here on the device below
    on,
    test_a_label_that_is_no_class_makes_the_loss_nan_on_a_gpu,
    test_a_loss_and_its_gradients_are_those_of_float64_on_the_cpu,
    test_a_memory_that_fills_and_wraps_is_that_of_float64_on_the_cpu,
)
from test_waiting import RANDOM

from levelfield.losses import ArcFaceLoss, ContrastiveLoss, CrossBatchMemory, TripletMarginLoss, WeightedSum


@pytest.fixture
def device():
    with pretended_gpu() as name:
        yield name


@pytest.mark.parametrize("situation", ["raw", "triplets"])
def test_a_sum_of_losses_is_that_of_float64_on_the_cpu(situation, device):
    parts = {"pairs": ContrastiveLoss(), "triplets": TripletMarginLoss(), "classes": ArcFaceLoss(20, 6)}
    loss, case = WeightedSum(parts, {"classes": 0.5}).double(), class_batch(situation, dim=6)
    expected = loss(*case.arguments())
    found = loss.to(device)(*on(device, torch.float64, *case.arguments()))
    assert found.device.type == device
    assert found.item() == pytest.approx(expected.item())


@pytest.mark.parametrize("training", [True, False])
def test_a_memory_takes_a_choice_of_the_batch_as_on_the_cpu(training, device):
    case, exact = batch("triplets", dim=6), CrossBatchMemory(ContrastiveLoss(), 6, memory_size=40).double()
    memory = copy.deepcopy(exact).to(device)
    for each, given in ((exact, case.arguments()), (memory, on(device, torch.float64, *case.arguments()))):
        each(*given[:2])
        each.train(training)
    expected = exact(*case.arguments())
    found = memory(*on(device, torch.float64, *case.arguments()))
    assert found.item() == pytest.approx(expected.item())


@pytest.mark.parametrize(("loss", "options"), RANDOM)
def test_a_loss_that_draws_does_so_on_its_device(loss, options, device):
    made = loss(**({"num_classes": 20, "embedding_size": 6} if needs_classes(loss) else {}), **options).to(device)
    for situation in ("raw", "pairs", "triplets", *([] if needs_classes(loss) else ["reference"])):
        given = on(device, torch.float32, *class_batch(situation, dim=6).arguments())
        value = made(*given)
        value.backward()
        assert {value.device.type, given[0].grad.device.type} == {device}
        assert value.isfinite()
        assert (given[0].grad != 0).any()
