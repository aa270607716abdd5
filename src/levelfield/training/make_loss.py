"""Build a loss that is given as a class or partial, once the training classes are known.

The learner passes `num_classes` and `embedding_size`.
"""

import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from jsonargparse import Namespace
from lightning.pytorch.utilities import rank_zero_warn
from torch import nn

from levelfield.core.errors import UserError
from levelfield.training.settings import OF_THE_LOSS, SUPPLIED


def supplied_arguments(factory: Callable) -> list[str]:
    """Which of `num_classes` and `embedding_size` the learner passes to a class, partial or function.

    It passes those that have no default or a number as default, also for a base class behind `**kwargs` and for the
    losses in a sum.
    """
    summed = [each for each in _summed(factory).values() if not isinstance(each, nn.Module)]
    asked = {name for each in (factory, *summed) for name in _asked(each)}
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
        made["losses"] = {
            name: each if isinstance(each, nn.Module) else make_loss(each, num_classes, embedding_size)
            for name, each in summed.items()
        }
        if "losses" not in getattr(factory, "keywords", {}):  # given by position
            return loss_class(factory)(**{**given, **made})
    return factory(**made)


def given_arguments(factory: Any) -> dict[str, Any]:
    """The arguments of a partial, or of a configuration, by name."""
    if isinstance(factory, Namespace):
        return vars(factory.get("init_args") or Namespace())
    if not isinstance(factory, partial):
        return {}
    if _in_parser(factory):
        return dict(factory.keywords)
    by_position = zip(parameters(factory), factory.args, strict=False)
    return {**given_arguments(factory.func), **dict(by_position), **factory.keywords}


def loss_class(factory: Any) -> Any:
    """The class or function behind a partial of Python or of the command line, a configuration or a module."""
    if isinstance(factory, Namespace):
        return pkgutil.resolve_name(factory.class_path)
    while isinstance(factory, partial):
        factory = factory.args[-1] if _in_parser(factory) else factory.func
    return type(factory) if isinstance(factory, nn.Module) else factory


def of_loss(loss: Any, option: str) -> Any:
    """The value of an option of `OF_THE_LOSS` that is not given: an attribute of the loss class, or the default.

    Args:
        loss: A module, class or partial, or its configuration. One that holds losses takes the value on which they
            agree.

    Raises:
        UserError: the losses of a sum have different values.
    """
    found = list(_values(loss, option))
    if option == "model.loss_lr":  # a loss without weights needs no rate
        found = [each for each in found if each[1] != OF_THE_LOSS[option]] or found
    if any(value != found[0][1] for _, value in found):
        each = ", ".join(f"{name} {value}" for name, value in found)
        raise UserError(f"--{option}: the losses of the sum differ ({each}); give the option")
    return found[0][1]


def settle(parsed: Namespace) -> None:
    """Fill settings that default to an attribute of the loss class, so that `config.yaml` has the numbers."""
    for option in OF_THE_LOSS:
        if option in parsed and parsed[option] is None:
            parsed[option] = of_loss(parsed.model.get("loss"), option)


def is_normalized(loss: Any, asked: bool | None) -> bool:
    """Whether a loss gets normalized embeddings: by the option, else by its class, else true."""
    if asked is None:
        return bool(of_loss(loss, "model.normalize"))
    for name in [name for name, normalize in _values(loss, "model.normalize") if asked and not normalize]:
        rank_zero_warn(
            f"--model.normalize true: {name} expects raw embeddings (normalize = False); leave the option out",
            category=UserWarning,
        )
    return asked


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


def _summed(loss: Any) -> Mapping[str, Any]:
    """The losses of a sum, from its mapping `losses`."""
    losses = getattr(loss, "losses", None) if isinstance(loss, nn.Module) else given_arguments(loss).get("losses")
    return dict(losses.items()) if isinstance(losses, Mapping | nn.ModuleDict) else {}


def _inner(loss: Any) -> list[Any]:
    """The losses of a sum, or the one that another loss holds as `loss`, such as a memory."""
    one = getattr(loss, "loss", None) if isinstance(loss, nn.Module) else given_arguments(loss).get("loss")
    is_loss = isinstance(one, nn.Module | partial) or (isinstance(one, Namespace) and "class_path" in one)
    return [*_summed(loss).values()] or ([one] if is_loss else [])


def _values(loss: Any, option: str) -> Iterator[tuple[str, Any]]:
    """Name and value of each inner loss of one that does not have the attribute itself, or of the only loss."""
    kind, name = loss_class(loss), option.partition(".")[2]
    own = inspect.isclass(kind) and hasattr(kind, name)
    if not own and (inner := _inner(loss)):
        for each in inner:
            yield from _values(each, option)
    else:
        yield getattr(kind, "__name__", ""), getattr(kind, name) if own else OF_THE_LOSS[option]


def _in_parser(factory: partial) -> bool:
    """Whether the command line's parser made this partial; then its last argument is the class."""
    return factory.func.__module__.startswith("jsonargparse")
