"""Lightning callbacks of levelfield."""

from levelfield.training.callbacks.gradient_caching import GradientCaching
from levelfield.training.callbacks.record_evaluation import RecordEvaluation
from levelfield.training.callbacks.retrieval_validation import BestEpoch, RetrievalValidation
from levelfield.training.callbacks.trunk_compute import GradientCheckpointing, HeadFirst, TimmSyncBatchNorm
from levelfield.training.callbacks.until_done import KeepStart, UntilDone, ValidateFirst
from levelfield.training.run_folder import LastEpoch
from levelfield.training.steps import CheckFirstBatch, LogLosses, SeedSteps

__all__ = [name for name in dir() if name[0].isupper()]
