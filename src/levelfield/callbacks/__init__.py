"""Lightning callbacks of ours."""

from levelfield.callbacks.finish_tracking import FinishTracking
from levelfield.callbacks.new_weights_first import NewWeightsFirst
from levelfield.callbacks.record_opening import RecordOpening
from levelfield.callbacks.retrieval_validation import RetrievalValidation
from levelfield.callbacks.warm_up import WarmUp

__all__ = ["FinishTracking", "NewWeightsFirst", "RecordOpening", "RetrievalValidation", "WarmUp"]
