"""Unit vectors at any scale, and products in true float32 by either of torch's interfaces, compiled or not."""

import pytest
import torch
from functorch.compile import make_boxed_func
from matmul_precision import COARSE, Products, coarse_by_the_older_name, made, older, precisions
from torch._dynamo.backends.common import aot_autograd

from levelfield.core import numerics
from levelfield.core.numerics import inner_products, true_float32, unit


@pytest.mark.parametrize("coarse", COARSE.values(), ids=COARSE)
def test_products_are_true_inside_and_everything_is_as_it_was_outside(coarse):
    with made(coarse):
        before, before_older = precisions(), older()
        with true_float32():
            inside = precisions()
            assert (inside[2], inside[4], older()) == ("ieee", "ieee", "highest")
            assert torch.backends.cuda.matmul.allow_tf32 is False  # the two interfaces agree
        assert (precisions(), older()) == (before, before_older)
        with pytest.raises(ZeroDivisionError), true_float32():
            1 / 0  # noqa: B018
        assert (precisions(), older()) == (before, before_older)


@pytest.mark.parametrize("coarse", COARSE.values(), ids=COARSE)
def test_products_and_their_derivatives_are_true(coarse):
    generator = torch.Generator().manual_seed(0)
    anchors, others = (torch.randn(2, n, 3, dtype=torch.float64, generator=generator) for n in (4, 5))
    expected = torch.einsum("bnd,bmd->bnm", anchors, others)
    with made(coarse), Products() as products:
        torch.testing.assert_close(inner_products(anchors.requires_grad_(), others.requires_grad_()), expected)
        assert torch.autograd.gradcheck(inner_products, (anchors, others))
        assert torch.autograd.gradgradcheck(inner_products, (anchors[0], others[0]))
    assert products.guarded > 10
    assert not products.seen


@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_a_compiler_sees_one_operator_forward_and_backward():
    torch._dynamo.reset()
    names = []

    def watch(module, _):
        names.extend(str(node.target) for node in module.graph.nodes if node.op == "call_function")
        return make_boxed_func(module.forward)

    backend = aot_autograd(fw_compiler=watch, bw_compiler=watch)
    x, y = torch.randn(4, 3, requires_grad=True), torch.randn(5, 3, requires_grad=True)
    with made(coarse_by_the_older_name):
        compiled = torch.compile(lambda x, y: inner_products(x, y).square().sum(), fullgraph=True, backend=backend)
        compiled(x, y).backward()
    torch.testing.assert_close(x.grad, 2 * (x @ y.T) @ y)
    torch.testing.assert_close(y.grad, 2 * (y @ x.T) @ x)
    assert sum("levelfield.inner_products" in name for name in names) == 3
    assert not any("mm" in name for name in names)


@pytest.mark.parametrize("scale", [1e-44, 1e-40, 1e-30, 1e-19, 1.0, 1e15, 1e19, 1e30, 1e37])
def test_unit_vectors_at_any_scale_of_float32(scale):
    vectors = (torch.randn(20, 8, generator=torch.Generator().manual_seed(0)) * scale).requires_grad_()
    exact = vectors.detach().double()
    torch.testing.assert_close(unit(vectors), (exact / exact.norm(dim=1, keepdim=True)).float())


def test_unit_vectors_have_two_derivatives_and_a_zero_vector_stays_zero_and_passes_its_gradient():
    vectors = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert torch.autograd.gradcheck(unit, vectors)
    assert torch.autograd.gradgradcheck(unit, vectors)
    vectors = torch.zeros(2, 3, requires_grad=True)
    directions = unit(vectors)
    directions.backward(torch.arange(6.0).view(2, 3))
    assert not directions.any()
    assert torch.equal(vectors.grad, torch.arange(6.0).view(2, 3))
    assert unit(torch.tensor([[1.0, torch.nan], [torch.inf, 0.0]])).isnan().any(1).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [2, 128, 2048])
def test_rounding_of_equal_unit_vectors_stays_below_its_bound(dtype, dim):
    vectors = unit(torch.randn(40, dim, dtype=dtype, generator=torch.Generator().manual_seed(dim)) + 1)
    squares = vectors.square().sum(1)
    left = 2 * squares - 2 * (vectors @ vectors.T).diagonal()
    assert left.abs().max() <= numerics.rounding_of(vectors)
    assert (2 - 2 * (vectors @ vectors.T).diagonal()).abs().max() <= numerics.rounding_of(vectors)
