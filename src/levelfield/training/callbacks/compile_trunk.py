"""Compiles the trunk."""

from lightning.pytorch import Callback, LightningModule, Trainer

from levelfield.training.checks import trunk_of


class CompileTrunk(Callback):
    """Compiles the trunk with `torch.compile` at the first batch of a fit.

    The first batch of each shape can take minutes. Results differ by rounding, so a study treats it as another setting.
    Checkpoints are those of an uncompiled trunk.

    Args:
        backend: backend of `torch.compile`.
    """

    def __init__(self, backend: str = "inductor") -> None:
        self.backend = backend

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trunk_of(pl_module, self).compile(backend=self.backend)
