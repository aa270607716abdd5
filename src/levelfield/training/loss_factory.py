"""A loss that is made once the training classes are known: the learner supplies `num_classes` and `embedding_size`."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from jsonargparse._parameter_resolvers import ParamData, get_signature_parameters
from torch import nn

from levelfield.errors import UserError
from levelfield.losses.weighted_sum import WeightedSum
from levelfield.training.settings import SUPPLIED, restricted


def supplied_arguments(factory: Callable) -> list[str]:
    """Which of `num_classes` and `embedding_size` a class, partial or function is to be given.

    Those that have no default or a number, also where the `**kwargs` of a base class take them; and those of the losses
    of a sum.
    """
    asked = {name for each in (factory, *_summed(factory).values()) for name in _asked(each)}
    return [name for name in SUPPLIED if name in asked]


def make_loss(factory: Callable, num_classes: int | None, embedding_size: int) -> nn.Module:
    """The loss that `factory` makes.

    Args:
        num_classes: None where the factory takes none.

    Raises:
        UserError: a partial that says another number.
    """
    supplied = dict(zip(SUPPLIED, (num_classes, embedding_size), strict=True))
    given = given_arguments(factory)
    for name in _asked(factory):
        if given.get(name, supplied[name]) != supplied[name]:
            raise UserError(
                f"--model.loss.{name} {given[name]} is not the training's {supplied[name]}: leave it out, for it is "
                "supplied"
            )
    made = {name: make_loss(each, num_classes, embedding_size) for name, each in _summed(factory).items()}
    if made:  # what a sum was given by position is given by name
        assert isinstance(factory, partial)
        made = {**given["losses"], **made}
        by_name = "losses" in factory.keywords
        factory = (
            partial(factory, losses=made) if by_name else partial(loss_class(factory), **{**given, "losses": made})
        )
    return factory(**{name: supplied[name] for name in _asked(factory) if name not in given})


def check_call(loss: nn.Module, miner: nn.Module | None) -> None:
    """Raises UserError unless loss and miner can be called with a batch, and the loss with the miner's choice."""
    if isinstance(loss, WeightedSum):
        for each in loss.losses.values():
            check_call(each, miner)
        return
    name = type(loss).__name__
    if not _takes(loss, 2):
        raise UserError(f"--model.loss {name} is no loss: its forward does not take (embeddings, labels)")
    if miner is None:
        return
    if not _takes(loss, 3):
        raise UserError(
            f"--model.loss {name} takes no miner's choice: leave out --model.miner {type(miner).__name__}, or write "
            "forward(embeddings, labels, indices_tuple=None)"
        )
    if not _takes(miner, 2):
        raise UserError(
            f"--model.miner {type(miner).__name__} is no miner: its forward does not take (embeddings, labels)"
        )


def _takes(module: nn.Module, arguments: int) -> bool:
    try:
        inspect.signature(module.forward).bind(*(None,) * arguments)
    except TypeError:
        return False
    return True


def _asked(factory: Callable) -> list[str]:
    parameters = {parameter.name: parameter for parameter in _parameters(factory)}
    return [name for name in SUPPLIED if name in parameters and parameters[name].default is not None]


def _summed(factory: Callable) -> dict[str, Callable]:
    """The losses of a weighted sum that are yet to be made."""
    kind = loss_class(factory)
    if not (inspect.isclass(kind) and issubclass(kind, WeightedSum)):
        return {}
    losses = given_arguments(factory).get("losses", {})
    return {name: each for name, each in losses.items() if not isinstance(each, nn.Module)}


def given_arguments(factory: Callable) -> dict[str, Any]:
    """What a partial has been given, by name."""
    if not isinstance(factory, partial):
        return {}
    positional = () if _in_parser(factory) else factory.args
    names = [parameter.name for parameter in _parameters(factory)]
    inner = {} if _in_parser(factory) else given_arguments(factory.func)
    return {**inner, **dict(zip(names, positional, strict=False)), **factory.keywords}


def loss_class(factory: Any) -> Any:
    """The class or function behind a partial, ours or the command line's."""
    while isinstance(factory, partial):
        factory = factory.args[-1] if _in_parser(factory) else factory.func
    return factory


def accepted(kind: type) -> set[str]:
    """The names of the arguments that a class takes, those of its bases among them where it passes them on."""
    return {parameter.name for parameter in _parameters(kind)}


def _parameters(factory: Callable) -> list[ParamData]:
    with restricted():
        return get_signature_parameters(loss_class(factory), None)


def _in_parser(factory: partial) -> bool:
    """Whether the command line's parser made this partial: of its own function, whose last argument is the class."""
    return factory.func.__module__.startswith("jsonargparse")
