"""The one exception for mistakes that a user can make and mend."""


class UserError(ValueError):
    """A mistake in the input; its message is one line that names the file, row or key and the remedy.

    The command line prints the message and exits with code 2; `--debug` shows the traceback.
    """


class TrainingFailed(UserError):  # noqa: N818  # it says what happened to a trial
    """A training without a result: its loss is not finite, or it needs more memory than there is."""
