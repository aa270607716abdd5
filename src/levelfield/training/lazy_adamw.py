"""AdamW for class weights of which a step draws some rows."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW
from torch.optim.optimizer import ParamsT

CACHED = 2**17  # numbers of a parameter that a CPU has at hand while it moves them


class LazyAdamW(AdamW):
    """AdamW that, of a parameter with a sparse gradient, touches the rows of that gradient alone.

    Each row is an AdamW of its own whose clock stands still while it is not drawn: its moments keep, its weight does
    not decay, its bias correction counts its own steps. In exact arithmetic that is another optimizer than AdamW, which
    moves every row at every step. A parameter with a dense gradient has torch's AdamW, to the bit.

    torch's `SparseAdam` takes no dense gradient, does not decay, and counts the steps of all rows together, by which a
    row that is first drawn late moves by (1 - beta1) / sqrt(1 - beta2) = 3.2 learning rates, as a row here by one.

    Args:
        params: parameters, or groups of them.
        lr: learning rate.
        betas: of the running means of the gradient and of its square.
        eps: beside the root of the mean square.
        weight_decay: times the learning rate, the share of itself that a weight loses in a step.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        with torch.enable_grad():
            loss = None if closure is None else closure()
        sparse = []
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.grad.is_sparse:
                    sparse.append((parameter, parameter.grad))
                    self._step_rows(parameter, parameter.grad.coalesce(), group)
                    parameter.grad = None  # AdamW passes it over
        super().step()
        for parameter, gradient in sparse:
            parameter.grad = gradient
        return loss

    def _step_rows(self, weights: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[weights]
        if not state:
            state["step"] = torch.zeros(len(weights), device=weights.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weights), torch.zeros_like(weights)
        state["step"] = state["step"].to(weights.device)  # a loaded state's may lie elsewhere
        together = max(1, CACHED // weights.shape[1:].numel()) if weights.device.type == "cpu" else len(weights)
        lr, (beta1, beta2) = group["lr"], group["betas"]
        for rows, slopes in zip(gradient.indices()[0].split(together), gradient.values().split(together), strict=True):
            state["step"].index_add_(0, rows, torch.ones_like(rows, dtype=state["step"].dtype))
            steps = state["step"].index_select(0, rows).double()[:, None]
            mean = _moved(state["exp_avg"], rows, slopes, 1 - beta1)
            square = _moved(state["exp_avg_sq"], rows, slopes.square(), 1 - beta2)
            scale, root = (-lr / (1 - beta1**steps)).to(mean.dtype), (1 - beta2**steps).sqrt().to(mean.dtype)
            change = mean.mul_(scale).div_(square.sqrt_().div_(root).add_(group["eps"]))
            if group["weight_decay"]:
                change.sub_(weights.index_select(0, rows), alpha=lr * group["weight_decay"])
            weights.index_add_(0, rows, change)


def _moved(moments: Tensor, rows: Tensor, towards: Tensor, share: float) -> Tensor:
    """Some rows of `moments`, which move there by a share of the way; adding is faster on a CPU than copying back."""
    found = moments.index_select(0, rows)
    change = torch.sub(towards, found).mul_(share)
    moments.index_add_(0, rows, change)
    return found.add_(change)
