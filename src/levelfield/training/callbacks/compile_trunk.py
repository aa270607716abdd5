"""Compiles the trunk."""

from lightning.pytorch import Callback, LightningModule, Trainer


class CompileTrunk(Callback):
    """Has `torch.compile` make the trunk's steps and embeddings, from a fit's first batch on.

    The first batch of each shape takes up to some minutes. Numbers differ by rounding, so a study's identity has it, as
    it has every callback; checkpoints are those of a trunk that is not compiled.

    Args:
        backend: of `torch.compile`.
    """

    def __init__(self, backend: str = "inductor") -> None:
        self.backend = backend

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        pl_module.trunk.compile(backend=self.backend)  # type: ignore[union-attr]
