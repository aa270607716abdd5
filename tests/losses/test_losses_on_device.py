"""Every loss in float32 on each device against itself in float64 on the CPU, which other files check against loops."""

import contextlib
import copy

import equations
import pytest
import torch
from loss_cases import DRAWING, SETTINGS, batch, class_batch, make, needs_classes, shipped, value_and_gradients
from pretended_gpu import any_device
from torch import Tensor

from levelfield import losses, regularizers
from levelfield.losses import MarginLoss, TripletMarginLoss

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


def assert_close(found: list[Tensor], expected: list[Tensor]) -> None:
    """A loss, then gradients, relative to the largest entry of each."""
    for number, (ours, right) in enumerate(zip(found, expected, strict=True)):
        bound = (2e-4 if number else 2e-5) * max(float(right.abs().max()), 1e-3)
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


@pytest.mark.parametrize("name", [name for name in regularizers.__all__ if name != "Regularizer"])
def test_a_regularizer_and_its_gradient_are_those_of_float64_on_the_cpu(name, device):
    regularizer, x = getattr(regularizers, name)(), batch("raw", dim=6).x
    value, gradients = value_and_gradients(regularizer(x), x)
    (there,) = on(device, torch.float32, x)
    found, found_gradients = value_and_gradients(regularizer(there), there)
    assert found.device.type == device
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


# Whose shapes the values of a batch set: classes that are there, ranks or pairs of so many as an anchor has.
WAITS = {
    *("AngularLoss-", "CentroidTripletLoss-", "NPairsLoss-", "PrototypicalLoss-", "StructuredClusteringLoss-"),
    *("PNPLoss-", "RecallAtKLoss-", "ROADMAPLoss-", "SmoothAPLoss-", "TripletMarginLoss-swap"),
    "TripletMarginLoss-smooth_loss",
}


@pytest.mark.parametrize(("loss", "options"), [*CASES, *RANDOM])
def test_a_loss_does_not_wait_for_a_gpu_unless_values_set_its_shapes(loss, options, monkeypatch):
    """On the device `meta`, whose tensors have no values: what depends on them raises there."""
    monkeypatch.setattr("levelfield.losses.base.autocast", lambda *_, **__: contextlib.nullcontext())  # not for meta
    x, y = torch.randn(12, 6, device="meta", requires_grad=True), (torch.arange(12) // 3).to("meta")
    names = {f"{loss.__name__}-{','.join(options)}", f"{loss.__name__}-"}
    with pytest.raises(RuntimeError) if names & WAITS else contextlib.nullcontext():
        make(loss, **options).to("meta")(x, y).backward()


@pytest.mark.parametrize(
    ("loss", "loop"), [(TripletMarginLoss, equations.triplet_margin), (MarginLoss, equations.margin)]
)
@pytest.mark.parametrize("looks", [True, False])
def test_the_mean_of_random_triplets_is_near_that_of_all(loss, loop, looks, monkeypatch):
    case = batch("raw", labels=[0, 0, 0, 1, 1, 1, 2, 3], dim=6)  # two anchors have no positive
    case.loss = loss(margin=4.0, triplets_per_anchor=20_000)  # all terms are above 0: draws have their mean
    monkeypatch.setattr("levelfield.losses.triplets.can_look", lambda _: looks)
    assert case.loss(case.x, case.y).item() == pytest.approx(loop(case, margin=4.0).item(), rel=5e-3)
