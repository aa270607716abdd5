"""The callbacks that every metric learner needs, for Trainers without them."""

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.trainer.states import TrainerFn

from levelfield.training.callbacks import (
    BestEpoch,
    CheckFirstBatch,
    LogLosses,
    RandomDraws,
    RecordOpening,
    RetrievalValidation,
    TimmSyncBatchNorm,
)
from levelfield.training.callbacks.best_epoch import default_checkpoint


def missing_callbacks(trainer: Trainer) -> list[Callback]:
    """The usual callbacks that a Trainer does not have.

    Validation by retrieval, best epoch, logged losses, seeded steps, timm's synchronized batch norm, and in a test a
    line in the ledger.
    """
    kinds: list[type[Callback]] = [RandomDraws, RetrievalValidation, LogLosses, TimmSyncBatchNorm, CheckFirstBatch]
    if trainer.state.fn == TrainerFn.FITTING and default_checkpoint(trainer) is not None:
        kinds.append(BestEpoch)
    if trainer.state.fn == TrainerFn.TESTING:
        kinds.append(RecordOpening)
    given = trainer.callbacks  # type: ignore[attr-defined]
    return [kind() for kind in kinds if not any(isinstance(each, kind) for each in given)]
