"""Lightning callbacks of levelfield."""

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.trainer.states import TrainerFn

from levelfield.training.callbacks.average_with_start import AverageWithStart
from levelfield.training.callbacks.best_epoch import BestEpoch, default_checkpoint
from levelfield.training.callbacks.compile_trunk import CompileTrunk
from levelfield.training.callbacks.gradient_caching import GradientCaching
from levelfield.training.callbacks.gradient_checkpointing import GradientCheckpointing
from levelfield.training.callbacks.keep_in_wandb import KeepInWandb
from levelfield.training.callbacks.last_epoch import LastEpoch
from levelfield.training.callbacks.log_losses import LogLosses
from levelfield.training.callbacks.new_weights_first import NewWeightsFirst
from levelfield.training.callbacks.random_draws import RandomDraws
from levelfield.training.callbacks.record_opening import RecordOpening
from levelfield.training.callbacks.retrieval_validation import RetrievalValidation
from levelfield.training.callbacks.sync_batch_norm import TimmSyncBatchNorm
from levelfield.training.callbacks.track_training import TrackTraining
from levelfield.training.callbacks.until_done import UntilDone
from levelfield.training.callbacks.validate_first import ValidateFirst
from levelfield.training.callbacks.warm_up import WarmUp

__all__ = [
    "AverageWithStart",
    "BestEpoch",
    "CompileTrunk",
    "GradientCaching",
    "GradientCheckpointing",
    "KeepInWandb",
    "LastEpoch",
    "LogLosses",
    "NewWeightsFirst",
    "RandomDraws",
    "RecordOpening",
    "RetrievalValidation",
    "TimmSyncBatchNorm",
    "TrackTraining",
    "UntilDone",
    "ValidateFirst",
    "WarmUp",
]


def missing_callbacks(trainer: Trainer) -> list[Callback]:
    """What a Trainer would silently lack for metric learning: those of the usual callbacks that it has not been given.

    Validation by retrieval, the best epoch, logged losses, seeded steps, batch norm that is synchronized as timm does,
    and in a test a line in the ledger.
    """
    kinds: list[type[Callback]] = [RandomDraws, RetrievalValidation, LogLosses, TimmSyncBatchNorm]
    if trainer.state.fn == TrainerFn.FITTING and default_checkpoint(trainer) is not None:
        kinds.append(BestEpoch)
    if trainer.state.fn == TrainerFn.TESTING:
        kinds.append(RecordOpening)
    given = trainer.callbacks  # type: ignore[attr-defined]
    return [kind() for kind in kinds if not any(isinstance(each, kind) for each in given)]
