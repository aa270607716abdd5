"""A GPU that is not there: tensors that say they lie on `cuda:0`, and whose values lie on the CPU.

Within `pretended_gpu()`, whatever is made on or moved to `cuda` is such a tensor. An operator that takes some of these
and some of the CPU's raises, as on a GPU; all others compute what they compute on the CPU, `nonzero` and `item` too, on
whose values shapes and branches depend. torch's own `FakeTensorMode` has no values for these, and where torch is built
for CUDA and finds no GPU its tensors have no backward pass.

What it cannot tell: which types of numbers an operator of a GPU takes, what autocast does there, what inference mode
(here `no_grad`) forbids, and random draws: the GPU's generator is the CPU's.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

# To autograd these tensors lie on `meta`, which is always there and never waits.
GPU, STAND_IN = torch.device("cuda", 0), torch.device("meta")
COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
NAMING = (torch.device, torch.get_device_module, torch._C._nn._parse_to)
INDEXING = (Tensor.__getitem__, Tensor.__setitem__)
FROM_NUMBERS: tuple[Any, ...] = (torch.tensor, torch.as_tensor, torch.asarray)


class OnGpu(Tensor):
    """A tensor there; `values` is the one that is computed with."""

    values: Tensor

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, values: Tensor) -> "OnGpu":
        made = Tensor._make_wrapper_subclass(
            cls, values.size(), strides=values.stride(), storage_offset=values.storage_offset(), dtype=values.dtype,
            device=STAND_IN,
        )  # fmt: skip
        made.values = values
        return made

    @property
    def device(self) -> torch.device:
        return GPU

    @property
    def is_cuda(self) -> bool:
        return True

    @property
    def is_meta(self) -> bool:
        return False

    @property
    def data(self) -> Tensor:
        return Tensor.data.__get__(self)

    @data.setter
    def data(self, new: "OnGpu") -> None:
        Tensor.data.__set__(self, new)
        self.values = new.values

    def get_device(self) -> int:
        return GPU.index

    def __repr__(self) -> str:
        return f"OnGpu({self.values})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.values.__reduce_ex__(protocol)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return computed(func, args, kwargs or {})


class Operators(TorchDispatchMode):
    """Sees what is made there from nothing, too."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return computed(func, args, kwargs or {})


def computed(operator: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """What an operator gives, on the device where it is.

    Raises:
        RuntimeError: its tensors lie on two devices. A single number of the CPU may meet others one by one, and is not
            written to.
    """
    given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
    there, device = any(isinstance(each, OnGpu) for each in given), kwargs.get("device")
    if not there and device != STAND_IN:
        return operator(*args, **kwargs)
    writes_here = operator._schema.is_mutable and not isinstance(args[0], OnGpu)
    one_by_one = torch.Tag.pointwise in operator.tags and not writes_here
    for each in given:
        if there and not isinstance(each, OnGpu) and operator not in COPIES and not (one_by_one and each.ndim == 0):
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but {operator} takes one on {GPU} and one of shape "
                f"{tuple(each.shape)} on {each.device}"
            )
    if device is not None:
        there, kwargs = device == STAND_IN, {**kwargs, "device": torch.device("cpu") if device == STAND_IN else device}
    elif operator is torch.ops.aten.copy_.default:
        there = isinstance(args[0], OnGpu)
    found = operator(*tree_map(values_of, args), **tree_map(values_of, kwargs))
    if there:
        found = tree_map(lambda each: OnGpu(each) if isinstance(each, Tensor) else each, found)
    return return_and_correct_aliasing(operator, args, kwargs, found)


def values_of(each: Any) -> Any:
    return each.values if isinstance(each, OnGpu) else each


class Names(TorchFunctionMode):
    """Has `cuda` mean the device that stands in for it, before torch looks for a driver."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in NAMING:
            return func(*args, **(kwargs or {}))
        args = [stand_in(each) for each in args]
        kwargs = {name: stand_in(each) for name, each in (kwargs or {}).items()}
        if func is Tensor.cuda:
            return args[0].to(STAND_IN)
        if func is Tensor.tolist and isinstance(args[0], OnGpu):
            return args[0].values.tolist()
        if func in INDEXING and isinstance(args[0], OnGpu):
            args[1] = without_lists(args[1])
        if func in FROM_NUMBERS and kwargs.get("device") == STAND_IN:
            return func(*args, **{**kwargs, "device": "cpu"}).to(STAND_IN)
        if func is Tensor.new_tensor and isinstance(args[0], OnGpu):
            return torch.tensor(*args[1:], **{"dtype": args[0].dtype, **kwargs}).to(STAND_IN)
        return func(*args, **kwargs)


def stand_in(argument: Any) -> Any:
    is_gpu = isinstance(argument, str | torch.device) and str(argument).partition(":")[0] == GPU.type
    return STAND_IN if is_gpu else argument


def without_lists(index: Any) -> Any:
    """An index without lists, of which torch would make tensors that nobody sees."""
    if isinstance(index, tuple):
        return tuple(map(without_lists, index))
    return torch.tensor(index).to(STAND_IN) if isinstance(index, list) else index


def with_names(backward: Callable) -> Callable:
    """A backward pass in Python, to which torch hands on no mode of functions."""

    def named(*given: Any) -> Any:
        with Names():
            return backward(*given)

    return named


@contextmanager
def pretended_gpu() -> Iterator[str]:
    """The name of the device, within."""
    generator = torch.default_generator
    with pytest.MonkeyPatch.context() as patch, Names(), Operators():
        patch.setattr(BackwardCFunction, "apply", with_names(BackwardCFunction.apply))
        patch.setattr(torch, "inference_mode", torch.no_grad)
        patch.setattr(torch.cuda, "get_rng_state", lambda device=None: generator.get_state())
        patch.setattr(torch.cuda, "set_rng_state", lambda state, device=None: generator.set_state(state))
        patch.setattr(torch.cuda, "manual_seed_all", generator.manual_seed)
        patch.setattr(torch.cuda, "get_device_name", lambda device=None: "pretended")
        patch.setattr(torch.cuda, "mem_get_info", lambda device=None: (2**33, 2**34))
        yield GPU.type


ON_CUDA = (pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"))


@pytest.fixture(params=["cpu", "pretended", pytest.param("cuda", marks=ON_CUDA)])
def any_device(request) -> Iterator[str]:
    """The CPU, a pretended GPU, and in `make test-gpu` a GPU: the device's name."""
    if request.param == "pretended":
        with pretended_gpu() as name:
            yield name
    else:
        yield request.param
