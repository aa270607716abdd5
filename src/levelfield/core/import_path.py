"""Import an object by its path, or explain in one line why that fails."""

import importlib
import inspect
from typing import Any

from levelfield.core.errors import UserError, nearest


def import_named(path: str, option: str) -> Any:
    """The class or function at `package.module.Name`, or a UserError that begins with `option`: `--model.loss`."""
    if (reason := why_not_importable(path)) is not None:
        raise UserError(f"{option}: {reason}")
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def why_not_importable(path: str) -> str | None:
    """Why an import path does not exist, with the nearest name; None if it exists."""
    module_name, _, name = path.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module_name}.".startswith(f"{missing}."):
            return f"no module '{missing}', also not in the working directory; correct the name, or install it"
        place = f" ({error.filename}, line {error.lineno})" if isinstance(error, SyntaxError) else ""
        why = f"{type(error).__name__}: {' '.join(str(getattr(error, 'msg', error)).split())[:200]}{place}"
        return f"importing '{module_name}' fails: {why}{'; install it' if missing else ''}"
    if getattr(module, name, None) is not None:
        return None
    names = [key for key, value in vars(module).items() if inspect.isclass(value) or inspect.isfunction(value)]
    own = [key for key in names if getattr(vars(module)[key], "__module__", None) == module_name]
    hint = nearest(name, names, f"; there are: {', '.join(own[:10])}" if own else "")
    return f"'{module_name}' has no '{name}'{hint}"
