"""Find your own modules in the working directory: `--model.loss my_loss.MyLoss`."""

import importlib.util
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

CLASS_PATH = re.compile(r"(?<![\w./-])[^\W\d]\w*(?:\.[^\W\d]\w*)+(?![\w./-])")


def find_own_modules(named: Any, modules: Iterable[str] = ()) -> None:
    """Import from the working directory too, last, if a class path names a module there that is installed nowhere.

    Otherwise a folder with a file such as `winreg.py`, which Python tries to import on Linux, would run it.

    Args:
        named: Texts, or configurations with texts.
        modules: Further modules.
    """
    paths = [path for path in CLASS_PATH.findall(str(named)) if not (path.endswith(".yaml") or Path(path).exists())]
    if any(map(_is_here_alone, {path.partition(".")[0] for path in (*paths, *modules)})):
        sys.path.append(os.getcwd())


def _is_here_alone(module: str) -> bool:
    is_here = Path(module).is_dir() or Path(f"{module}.py").is_file()
    return is_here and module not in sys.modules and importlib.util.find_spec(module) is None
