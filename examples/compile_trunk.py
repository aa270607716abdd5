"""Compiles the trunk at the first batch of a fit. In Python, call `learner.trunk.compile()` yourself.

cd examples
levelfield fit --config data/glyphs.yaml --model.loss MultiSimilarityLoss \
  --trainer.callbacks+ compile_trunk.CompileTrunk --trainer.callbacks.mode default
"""

import warnings

import torch
from lightning.pytorch import Callback


class CompileTrunk(Callback):
    """The first batch of each shape can take minutes. Results differ by rounding; checkpoints are the usual ones.

    Args:
        backend: backend of `torch.compile`.
        mode: mode of `torch.compile`. `reduce-overhead` replays CUDA graphs, for small batches on a GPU. `max-autotune`
            also measures kernels, which takes minutes.
    """

    def __init__(self, backend: str = "inductor", mode: str = "default"):
        self.backend, self.mode = backend, mode

    def on_train_start(self, trainer, pl_module):
        if self.backend == "inductor" and torch.are_deterministic_algorithms_enabled():
            warnings.warn("deterministic: the compiler measures no kernels", stacklevel=2)
        pl_module.trunk.compile(backend=self.backend, mode=self.mode)
