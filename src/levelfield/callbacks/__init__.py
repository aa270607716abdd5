"""Lightning callbacks of ours."""

from levelfield.callbacks.retrieval_validation import RetrievalValidation

__all__ = ["RetrievalValidation"]
