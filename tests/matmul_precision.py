"""Every way to make products of float32 matrices coarser, and a watch over them."""

from contextlib import contextmanager
from functools import partial

import torch
from torch.utils._python_dispatch import TorchDispatchMode

BACKENDS = (("generic", "all"), ("cuda", "all"), ("cuda", "matmul"), ("mkldnn", "all"), ("mkldnn", "matmul"))


def precisions():
    return [torch._C._get_fp32_precision_getter(*place) for place in BACKENDS]


def older():
    """What the older interface says; None where it finds itself contradicted."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


coarse_by_the_older_name = partial(torch.set_float32_matmul_precision, "high")
coarse_on_the_cpu = partial(setattr, torch.backends.mkldnn.matmul, "fp32_precision", "bf16")
COARSE = {
    "older name": coarse_by_the_older_name,
    "older name, coarsest": partial(torch.set_float32_matmul_precision, "medium"),
    "allow_tf32": partial(setattr, torch.backends.cuda.matmul, "allow_tf32", True),
    "CUDA": partial(setattr, torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    "CPU": coarse_on_the_cpu,
    "everywhere": partial(setattr, torch.backends, "fp32_precision", "tf32"),
    "both names": lambda: (coarse_by_the_older_name(), coarse_on_the_cpu()),
}


@contextmanager
def made(coarse):
    coarse()
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.backends.fp32_precision = "none"
        for products in (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul):
            products.fp32_precision = "none"


class Products(TorchDispatchMode):
    """Notes the precision in which matrices are multiplied, and how often by the operator that makes it true."""

    def __init__(self):
        super().__init__()
        self.seen, self.guarded = [], 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.guarded += func is torch.ops.levelfield.inner_products.default
        if func._schema.name.removeprefix("aten::").rstrip("_") in {"mm", "bmm", "addmm", "baddbmm", "dot", "mv"}:
            self.seen.append((precisions()[2], precisions()[4]))
        return func(*args, **(kwargs or {}))
