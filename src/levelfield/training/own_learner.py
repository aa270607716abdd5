"""A LightningModule of the user's, by the name that `--model` and a checkpoint give it."""

from typing import Any, TypeVar

from lightning.pytorch import LightningModule

from levelfield.errors import UserError
from levelfield.runtime.import_path import import_named
from levelfield.training.make_loss import parameters

Learner = TypeVar("Learner", bound=LightningModule)


def learner_class(path: str | None, base: type[Learner]) -> type[Any]:
    """The class that `--model` names: any LightningModule, of which one that extends `base` takes all that it takes.

    Args:
        path: import path; None for `base` itself, `MetricLearner`.

    Raises:
        UserError: there is none, or another.
    """
    if path is None:
        return base
    option = f"--model {path}"
    if "." not in path:
        raise UserError(f"{option}: give the class with its module, my_learner.{path}")
    kind = import_named(path, option)
    if not (isinstance(kind, type) and issubclass(kind, LightningModule)):
        raise UserError(f"{option} is no LightningModule: write a class that extends one, or levelfield.MetricLearner")
    missing = sorted(parameters(base).keys() - parameters(kind).keys()) if issubclass(kind, base) else []
    if missing:
        raise UserError(
            f"{option} does not take {', '.join(missing[:3])}, ...: write __init__(self, ..., **kwargs) with "
            "super().__init__(**kwargs)"
        )
    return kind
