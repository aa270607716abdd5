"""What holds for every regularizer: awkward points, precision, bad input, gradients, compilation."""

import pytest
import torch
from matmul_precision import Products, coarse_on_the_cpu, made
from regularizer_cases import EVERY, points, same_as_loop

from levelfield import regularizers
from levelfield.regularizers import AntiCollapse, KoLeo, SphericalConstraint

AWKWARD = {
    "one point": torch.randn(1, 6, generator=torch.Generator().manual_seed(3)),
    "two points": torch.randn(2, 6, generator=torch.Generator().manual_seed(4)),
    "identical points": torch.full((6, 6), 0.3),
    "a zero vector": torch.cat([torch.zeros(1, 6), torch.eye(6)[:5]]),
    "all zero": torch.zeros(4, 6),
    "one dimension": torch.tensor([[1.0], [2.0], [-1.0]]),
}


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("precision", ["float32", "float64", "bfloat16", "float16", "autocast"])
@pytest.mark.parametrize("case", AWKWARD)
def test_awkward_points_have_a_finite_penalty_and_gradient(name, precision, case):
    dtype = torch.float32 if precision == "autocast" else getattr(torch, precision)
    given = AWKWARD[case].to(dtype).clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
        value = EVERY[name]()(given)
    assert value.shape == ()
    assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert value.isfinite()
    value.backward()
    assert given.grad.isfinite().all()
    if case == "one point":
        assert value == 0
        assert (given.grad == 0).all()


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_point_that_is_not_finite_never_gives_a_finite_penalty(name, bad):
    for broken in (torch.randn(8, 6).index_fill(0, torch.tensor([3]), bad), torch.full((8, 6), bad)):
        given = broken.requires_grad_()
        value = EVERY[name]()(given)
        value.backward()
        assert value.isnan()


@pytest.mark.parametrize("name", EVERY)
def test_what_is_no_batch_of_points_raises_one_line(name):
    for wrong in (torch.randn(4), torch.randn(0, 4), torch.randn(4, 0), torch.ones(4, 3, dtype=torch.long)):
        with pytest.raises(ValueError, match="takes a non-empty floating-point") as caught:
            EVERY[name]()(wrong)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("weight", [-0.1, float("nan"), float("inf")])
def test_a_weight_that_is_none_is_refused(name, weight):
    with pytest.raises(ValueError, match="must be a number of at least 0"):
        EVERY[name](weight=weight)


@pytest.mark.parametrize("name", EVERY)
def test_its_gradient_and_its_second_are_finite_differences(name):
    given = points(7, 5).requires_grad_()
    arguments = {"eps": 1e-6, "fast_mode": True}
    assert torch.autograd.gradcheck(EVERY[name](), given, **arguments, atol=1e-5, rtol=1e-4)
    assert torch.autograd.gradgradcheck(EVERY[name](), given, **arguments, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", sorted(set(EVERY) - {"SphericalConstraint", "CenterInvariance", "ZeroMean"}))
@pytest.mark.parametrize("scale", [1e-30, 1e19])
def test_penalties_of_unit_vectors_are_the_same_at_any_scale(name, scale):
    given = points(9, 6).float()
    torch.testing.assert_close(EVERY[name]()(given * scale), EVERY[name]()(given), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", EVERY)
def test_half_precision_is_computed_in_float32(name):
    given = points(9, 6).bfloat16()
    same_as_loop(EVERY[name]()(given), EVERY[name]()(given.double()), tolerance=1e-5)


@pytest.mark.parametrize("name", ["KoLeo", "Uniformity", "AntiCollapse"])
def test_products_are_true_float32_whatever_torch_was_told(name):
    with made(coarse_on_the_cpu), Products() as products:
        EVERY[name]()(torch.randn(8, 6, requires_grad=True)).backward()
    assert not products.seen
    assert products.guarded


@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("name", ["KoLeo", *(pytest.param(n, marks=pytest.mark.full) for n in EVERY if n != "KoLeo")])
def test_compiles_without_a_break(name):
    torch._dynamo.reset()
    regularizer, first, second = EVERY[name](), *(points(8, 6).float().requires_grad_() for _ in range(2))
    value = torch.compile(regularizer, fullgraph=True, backend="aot_eager")(first)
    expected = regularizer(second)
    torch.testing.assert_close(value, expected)
    value.backward()
    expected.backward()
    torch.testing.assert_close(first.grad, second.grad, rtol=1e-4, atol=1e-5)


def test_arguments_out_of_range_are_refused():
    for kind, wrong in [(regularizers.Uniformity, {"t": 0}), (AntiCollapse, {"eps2": -1}), (AntiCollapse, {"of": "x"})]:
        with pytest.raises(ValueError, match=f"{next(iter(wrong))}="):
            kind(**wrong)


def test_each_says_what_it_is_given():
    assert (KoLeo().of, SphericalConstraint().of) == ("embeddings", "raw_embeddings")
    assert (AntiCollapse().of, AntiCollapse(of="class_weights").of) == ("embeddings", "class_weights")
