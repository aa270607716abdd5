"""Where one's own modules are found: `--model.loss my_loss.MyLoss` from the working directory."""

import os
import sys


def find_own_modules() -> None:
    """Lets the working directory be imported from, after everything else: a file there replaces no installed module."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())


def working_directory_last() -> None:
    """Undoes that `python -m` and `python -c` look for each module in the working directory first."""
    if sys.path[0] in ("", os.getcwd()):
        sys.path.append(sys.path.pop(0))
