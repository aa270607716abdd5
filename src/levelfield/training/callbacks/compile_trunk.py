"""Compiles the trunk."""

from typing import Literal, get_args

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from levelfield.training.checks import trunk_of

CompileMode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]


class CompileTrunk(Callback):
    """Compiles the trunk with `torch.compile` at the first batch of a fit.

    The first batch of each shape can take minutes. Results differ by rounding, so a study treats it as another setting.
    Checkpoints are those of an uncompiled trunk. Under determinism, the default of `levelfield fit`, Inductor measures
    no kernels and pads no products, and the callback says so.

    Args:
        backend: backend of `torch.compile`.
        mode: mode of `torch.compile`. `reduce-overhead` replays CUDA graphs, for small batches on a GPU. `max-autotune`
            also measures kernels, which takes minutes, and needs a fit without determinism.

    Raises:
        ValueError: an unknown mode.
    """

    def __init__(self, backend: str = "inductor", mode: CompileMode = "default") -> None:
        if mode not in get_args(CompileMode):
            raise ValueError(f"mode={mode!r} must be one of {', '.join(get_args(CompileMode))}")
        self.backend = backend
        self.mode = mode

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.backend == "inductor" and torch.are_deterministic_algorithms_enabled():
            rank_zero_warn(
                "CompileTrunk: the trainer is deterministic, so the compiler measures no kernels and pads no products: "
                "for its fastest code give --trainer.deterministic false",
                category=UserWarning,
            )
        trunk_of(pl_module, self).compile(backend=self.backend, mode=self.mode)
