"""Your own metric by its import path, `my_metric.hubness`: a function of embeddings and labels."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from levelfield.core.errors import TrainingFailed, UserError
from levelfield.core.import_path import import_named
from levelfield.core.paths import find_own_modules

if TYPE_CHECKING:
    from jaxtyping import Float, Integer
    from torch import Tensor


def user_metric(name: str) -> Callable[[Tensor, Tensor], Any]:
    """The function at `my_metric.hubness`; the module may be in the working directory.

    Raises:
        UserError: no such module, no such function in it, or a module whose own import fails.
    """
    find_own_modules(name)
    metric = import_named(name, f"metric {name}")
    if not callable(metric):
        raise UserError(f"metric {name} is no function: write def {name.rpartition('.')[2]}(embeddings, labels)")
    return metric


def user_score(name: str, embeddings: Float[Tensor, "samples dim"], labels: Integer[Tensor, " samples"]) -> float:
    """The value of your metric for embeddings in the order of the data set.

    It gets copies on the CPU, float32 and int64, so that NumPy and scikit-learn accept them.

    Raises:
        UserError: it does not return one number.
        TrainingFailed: the number is not finite, e.g. of collapsed embeddings; a search continues with the next trial.
    """
    found = user_metric(name)(embeddings.detach().float().cpu().clone(), labels.detach().long().cpu().clone())
    try:
        value = float(found)
    except (TypeError, ValueError, RuntimeError):
        raise UserError(f"metric {name} gives {type(found).__name__}: return one number") from None
    if not math.isfinite(value):
        raise TrainingFailed(f"metric {name} gives {value}: return a finite number")
    return value
