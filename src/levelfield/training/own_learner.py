"""A learner of one's own, by the name that `--model` and a checkpoint give it."""

from typing import TypeVar

from levelfield.errors import UserError
from levelfield.runtime.import_path import import_named
from levelfield.training.make_loss import parameters

Learner = TypeVar("Learner")


def learner_class(path: str | None, base: type[Learner]) -> type[Learner]:
    """The class that `--model` names: one that extends `base`, MetricLearner, and takes all that it takes.

    Args:
        path: import path; None for `base` itself.

    Raises:
        UserError: there is none, or another.
    """
    if path is None:
        return base
    option = f"--model {path}"
    if "." not in path:
        raise UserError(f"{option}: give the class with its module, my_learner.{path}")
    kind = import_named(path, option)
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise UserError(f"{option} is no learner: write a class that extends levelfield.MetricLearner")
    if missing := sorted(parameters(base).keys() - parameters(kind).keys()):
        raise UserError(
            f"{option} does not take {', '.join(missing[:3])}, ...: write __init__(self, ..., **kwargs) with "
            "super().__init__(**kwargs)"
        )
    return kind
