"""Import an object by its path, or explain in one line why that fails."""

import importlib
import inspect
from typing import Any

from levelfield.core.errors import UserError, nearest


def import_named(path: str, option: str) -> Any:
    """The class or function at `package.module.Name`.

    Args:
        option: the option for messages: `--model.loss`.

    Raises:
        UserError: no such module, no such name in it, or a module whose own import fails.
    """
    reason = why_not_importable(path)
    if reason is not None:
        raise UserError(f"{option}: {reason}")
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def why_not_importable(path: str) -> str | None:
    """Why an import path does not exist, with the nearest name; None if it exists."""
    module_name, _, name = path.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            return f"no module '{error.name}', also not in the working directory; correct the name, or install it"
        return f"importing '{module_name}' fails: no module '{error.name}'; install it"
    except SyntaxError as error:
        return f"importing '{module_name}' fails: {error.msg} ({error.filename}, line {error.lineno})"
    except Exception as error:
        return f"importing '{module_name}' fails: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    if getattr(module, name, None) is not None:
        return None
    names = [key for key, value in vars(module).items() if inspect.isclass(value) or inspect.isfunction(value)]
    own = [key for key in names if getattr(vars(module)[key], "__module__", None) == module_name]
    hint = nearest(name, names, f"; there are: {', '.join(own[:10])}" if own else "")
    return f"'{module_name}' has no '{name}'{hint}"
