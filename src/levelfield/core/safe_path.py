"""The first step of `python -m`. Nothing else may be imported before it, also not of the standard library."""

import os
import sys


def without_working_directory() -> None:
    """Undo that `python -m` and `python -c` search the working directory first."""
    if sys.path[0] in ("", os.getcwd()):
        sys.path.pop(0)
