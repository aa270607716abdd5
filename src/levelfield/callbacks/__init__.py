"""Lightning callbacks of ours."""

from levelfield.callbacks.finish_tracking import FinishTracking
from levelfield.callbacks.retrieval_validation import RetrievalValidation

__all__ = ["FinishTracking", "RetrievalValidation"]
