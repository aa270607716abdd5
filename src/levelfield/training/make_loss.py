"""Build a loss that is given as a class or partial, once the training classes are known.

The learner passes `num_classes` and `embedding_size`.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from lightning.pytorch.utilities import rank_zero_warn
from torch import nn

from levelfield.errors import UserError
from levelfield.training.settings import SUPPLIED


def supplied_arguments(factory: Callable) -> list[str]:
    """Which of `num_classes` and `embedding_size` the learner passes to a class, partial or function.

    It passes those that have no default or a number as default, also for a base class behind `**kwargs` and for the
    losses in a sum.
    """
    asked = {name for each in (factory, *_summed(factory).values()) for name in _asked(each)}
    return [name for name in SUPPLIED if name in asked]


def make_loss(factory: Callable, num_classes: int | None, embedding_size: int) -> nn.Module:
    """The loss of `factory`.

    Args:
        num_classes: None if the factory takes none.

    Raises:
        UserError: a partial sets another number.
    """
    supplied = dict(zip(SUPPLIED, (num_classes, embedding_size), strict=True))
    given = given_arguments(factory)
    for name in _asked(factory):
        if given.get(name, supplied[name]) != supplied[name]:
            raise UserError(
                f"--model.loss.{name} {given[name]}: the training has {supplied[name]}; leave the option out, because "
                "the learner sets it"
            )
    made: dict[str, Any] = {name: supplied[name] for name in _asked(factory) if name not in given}
    if summed := _summed(factory):
        each_made = {name: make_loss(each, num_classes, embedding_size) for name, each in summed.items()}
        made["losses"] = {**given["losses"], **each_made}
        if "losses" not in getattr(factory, "keywords", {}):  # given by position
            return loss_class(factory)(**{**given, **made})
    return factory(**made)


def given_arguments(factory: Callable) -> dict[str, Any]:
    """The arguments of a partial by name."""
    if not isinstance(factory, partial):
        return {}
    if _in_parser(factory):
        return dict(factory.keywords)
    by_position = zip(parameters(factory), factory.args, strict=False)
    return {**given_arguments(factory.func), **dict(by_position), **factory.keywords}


def loss_class(factory: Any) -> Any:
    """The class or function behind a partial of Python or of the command line."""
    while isinstance(factory, partial):
        factory = factory.args[-1] if _in_parser(factory) else factory.func
    return factory


def of_class(loss: Any, name: str, otherwise: Any) -> Any:
    """An attribute of a loss class, such as `normalize = False`, for a built or unbuilt loss."""
    kind = type(loss) if isinstance(loss, nn.Module) else loss_class(loss)
    return getattr(kind, name, otherwise) if inspect.isclass(kind) else otherwise


def is_normalized(loss: Any, asked: bool | None) -> bool:
    """Whether a loss gets normalized embeddings: by the option, else by its class, else true."""
    of_loss: bool = of_class(loss, "normalize", True)
    if asked and not of_loss:
        kind = type(loss) if isinstance(loss, nn.Module) else loss_class(loss)
        rank_zero_warn(
            f"--model.normalize true: {kind.__name__} expects raw embeddings (normalize = False); leave the option out",
            category=UserWarning,
        )
    return of_loss if asked is None else asked


def parameters(factory: Callable) -> dict[str, inspect.Parameter]:
    """The parameters of a class or function, and those of base classes behind `**kwargs`."""
    kind, found = loss_class(factory), dict[str, inspect.Parameter]()
    classes = [base for base in kind.__mro__ if "__init__" in vars(base)] if inspect.isclass(kind) else []
    for function in [vars(base)["__init__"] for base in classes] or [kind]:
        taken = inspect.signature(function).parameters
        found |= {name: each for name, each in taken.items() if name not in found}  # those of the class come first
        if all(each.kind != each.VAR_KEYWORD for each in taken.values()):
            break
    collected = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name: each for name, each in found.items() if name != "self" and each.kind not in collected}


def _asked(factory: Callable) -> list[str]:
    known = parameters(factory)
    return [name for name in SUPPLIED if name in known and known[name].default is not None]


def _summed(factory: Callable) -> dict[str, Callable]:
    """The unbuilt losses of a sum, from a mapping `losses`."""
    losses = given_arguments(factory).get("losses")
    if not isinstance(losses, Mapping):
        return {}
    return {name: each for name, each in losses.items() if not isinstance(each, nn.Module)}


def _in_parser(factory: partial) -> bool:
    """Whether the command line's parser made this partial; then its last argument is the class."""
    return factory.func.__module__.startswith("jsonargparse")
