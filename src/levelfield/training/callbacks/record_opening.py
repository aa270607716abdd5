"""Writes each test into a ledger before a test label is used."""

import hashlib
import json
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info

from levelfield.errors import UserError, refused_file
from levelfield.models.weights import content_hash
from levelfield.storage.file_hash import file_hash
from levelfield.storage.ledger import Ledger


class RecordOpening(Callback):
    """Makes `trainer.test` an opening of the test classes that `ledger.jsonl` records, and a second one need a reason.

    The ledger lies beside the checkpoint that is tested: `ckpt_path`, or the one that the learner was loaded from. The
    weights of a learner that comes from training, not from a checkpoint, are recorded in the Trainer's
    `default_root_dir`. Testing the same again after an interruption is not another opening. A `fast_dev_run`, which
    scores nothing, is none.

    A `MetricLearner` brings this callback along; give one to the Trainer for a reason.

    Args:
        reopen: why the test classes are opened again.

    Attributes:
        ledger: the ledger of the last test.
        opening: its number there, from 1; None on other processes than the first.

    Raises:
        UserError: the test classes were opened before and no reason is given; on every process.

    Example:
        >>> trainer = Trainer(callbacks=[RecordOpening(reopen="two damaged test pictures were restored")], logger=False)
    """

    def __init__(self, reopen: str | None = None) -> None:
        self.reopen = reopen
        self.ledger: Ledger | None = None
        self.opening: int | None = None

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.ledger = self.opening = None
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        checkpoint = _checkpoint(trainer, pl_module)
        # It takes all processes to make whole weights of shards.
        weights = trainer.strategy.lightning_module_state_dict() if checkpoint is None else {}
        failed: Exception | None = None
        if trainer.is_global_zero:
            try:
                self._open(trainer, pl_module, checkpoint, weights)
            except Exception as error:
                failed = (refused_file(error) if isinstance(error, OSError) else None) or error
        # Raised by the first process alone, the others would wait for it.
        told = None if failed is None else (isinstance(failed, UserError), str(failed))
        told = trainer.strategy.broadcast(told)
        if failed is not None:
            raise failed
        if told is not None:
            is_mistake, line = told
            raise (UserError if is_mistake else RuntimeError)(line)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.ledger is not None and self.opening is not None:
            self.ledger.finish(self.opening)
            rank_zero_info(f"opening {self.opening} of the test classes, recorded in {self.ledger.path}")

    def _open(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: Path | None, weights: dict[str, Any]
    ) -> None:
        if checkpoint is not None:
            folder = checkpoint.parent
            tested = {checkpoint.name: file_hash(checkpoint)}
        else:
            folder = Path(trainer.default_root_dir)
            tested = {"weights": content_hash(weights)}
        self.ledger = Ledger(folder)
        samples = getattr(getattr(trainer, "datamodule", None), "sealed_list_hash", lambda: None)()
        self.opening = self.ledger.open(_configuration_hash(trainer, pl_module), tested, self.reopen, samples=samples)


def _checkpoint(trainer: Trainer, pl_module: LightningModule) -> Path | None:
    """The file that is tested; None for a learner that comes from training."""
    path = trainer.ckpt_path or getattr(pl_module, "checkpoint_path", None)
    return Path(path) if path is not None and Path(path).is_file() else None


def _configuration_hash(trainer: Trainer, pl_module: LightningModule) -> str:
    """Hash of the learner's arguments and of the data, which a datamodule of another kind does not tell."""
    datamodule: Any = getattr(trainer, "datamodule", None)
    data = datamodule.identity() if hasattr(datamodule, "identity") else type(datamodule).__name__
    described = json.dumps({"model": dict(pl_module.hparams), "data": data}, sort_keys=True, default=str)
    return hashlib.sha256(described.encode()).hexdigest()
