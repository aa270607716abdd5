"""Find your own modules in the working directory: `--model.loss my_loss.MyLoss`."""

import os
import sys


def find_own_modules() -> None:
    """Import from the working directory last, so that a file there replaces no installed module."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())


def working_directory_last() -> None:
    """Undo that `python -m` and `python -c` search the working directory first."""
    if sys.path[0] in ("", os.getcwd()):
        sys.path.append(sys.path.pop(0))
