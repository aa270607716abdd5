"""Build objects from the import paths and plain values of a checkpoint."""

import builtins
import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import is_dataclass
from functools import partial
from types import NoneType, UnionType
from typing import Any, Literal, Protocol, Union, get_args, get_origin

from torch import nn

from levelfield.core.errors import UserError
from levelfield.models.text_files import architecture
from levelfield.training.make_loss import parameters, supplied_arguments
from levelfield.training.trust import PARTS, named_class

# Parts without networks: `weights` has another meaning there.
WITHOUT_NETWORKS = tuple(f"model.{name}" for name in ("loss", "miner", "regularizer", "optimizer", "lr_scheduler"))


def built_arguments(kind: type, section: str, values: dict[str, Any], trusted: tuple[str, ...]) -> dict[str, Any]:
    """The arguments of a learner or datamodule.

    Args:
        kind: Its class.
        section: `model` or `data`.
        trusted: Modules or classes that a checkpoint may name in addition to the known libraries.

    Raises:
        UserError: A class that is not allowed, or with invalid arguments.
    """
    types, made = _types(kind), {}
    for name, value in values.items():
        place = f"{section}.{name}"
        alternatives = list(_alternatives(types.get(name, Any)))
        is_path = place in PARTS and isinstance(value, str) and "." in value
        if not is_path:
            _check_type(name, value, alternatives)
        made[name] = built(place, {"class_path": value} if is_path else value, trusted, types.get(name))
    return made


def built(place: str, value: Any, trusted: tuple[str, ...], hint: Any = None, is_inside: bool = False) -> Any:
    """A value with an object for each class path: a partial if the class needs more arguments.

    Args:
        place: The argument of the value, such as `model.trunk`.
        hint: The type of that argument.
        is_inside: Whether it is an argument of the part at that place.
    """
    types = list(_alternatives(hint))
    if isinstance(value, list | tuple):
        parts = [built(place, each, trusted, hint, is_inside) for each in value]
        return tuple(parts) if isinstance(value, tuple) or any(get_origin(each) is tuple for each in types) else parts
    if isinstance(value, str) and "." in value and any(map(_takes_class, types)):
        module, _, name = value.rpartition(".")
        is_activation = module == "torch.nn.functional" and callable(getattr(nn.functional, name, None))
        return getattr(nn.functional, name) if is_activation else named_class(place, value, trusted, is_inside)
    if not isinstance(value, dict):
        return value
    if "class_path" in value:
        kind = named_class(place, value["class_path"], trusted, is_inside)
        given = _without_files(place, kind, init_arguments(value))
    else:
        kind, given = next(filter(is_dataclass, types), None), value
    known = _types(kind) if kind else {}
    made = {
        name: built(place, each, trusted, known.get(name, hint if kind is None else None), True)
        for name, each in given.items()
    }
    if kind is None:
        return made
    if _needs_more(place, kind, made):
        return partial(kind, **made)
    try:
        return kind(**made)
    except FileNotFoundError as error:
        raise UserError(f"{kind.__name__}: no file '{error.filename}' here") from error


def init_arguments(spec: dict[str, Any]) -> dict[str, Any]:
    """The arguments next to a class path."""
    return {**(spec.get("dict_kwargs") or {}), **(spec.get("init_args") or {})}


def _without_files(place: str, kind: Any, given: dict[str, Any]) -> dict[str, Any]:
    """A network's arguments without weights, so that it downloads nothing; the checkpoint has the weights."""
    if not place.startswith("model.") or place in WITHOUT_NETWORKS:
        return given
    known = parameters(kind)
    if "weights" in known and not isinstance(given.get("weights"), dict):  # of the losses of a sum
        given = {**given, "weights": None}
    if kind.__module__.startswith("levelfield."):
        if "config" in known:
            given = {**given, "config": architecture(given.get("config"), "it")}
        for name, value in (given.get("arguments") or {}).items():  # of a model of timm
            numbers = value if isinstance(value, list) else [value]
            is_word = isinstance(value, str) and value.isidentifier()
            if not is_word and not all(part is None or isinstance(part, int | float) for part in numbers):
                raise UserError(f"it has the argument {str(name)[:80]!r} for its trunk, which may name a file")
    return given


def _needs_more(place: str, kind: Any, given: dict[str, Any]) -> bool:
    """Whether a learner or datamodule passes more arguments: weights to an optimizer, `num_classes` to a loss."""
    required = {name for name, each in inspect.signature(kind).parameters.items() if _is_required(each)}
    supplied = supplied_arguments(partial(kind, **given)) if place == "model.loss" else ()
    return not given.keys() >= {*required, *supplied}


def _is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind not in (
        parameter.VAR_POSITIONAL,
        parameter.VAR_KEYWORD,
    )


class _Names(dict[str, Any]):
    def __missing__(self, name: str) -> Any:
        return Any  # a name that only a type checker imports


def _types(kind: Any) -> dict[str, Any]:
    """The types of arguments; a class takes precedence over its bases. Empty if they cannot be resolved."""
    classes = [base for base in kind.__mro__ if "__init__" in vars(base)] if inspect.isclass(kind) else []
    found: dict[str, Any] = {}
    for function in [vars(base)["__init__"] for base in classes] or [kind]:
        names = _Names({**vars(builtins), **getattr(function, "__globals__", {})})
        with suppress(Exception):  # annotations that are not types
            found = inspect.get_annotations(function, locals=names, eval_str=True) | found
    return found


def _check_type(name: str, value: Any, types: list[Any]) -> None:
    """Raise an error for a value of a wrong type, if an argument takes only plain values."""
    words: list[Any] = []
    kinds: set[type] = {NoneType}  # jsonargparse accepts None as any default
    for each in types:
        if get_origin(each) is Literal:
            words += get_args(each)
        elif each in (bool, int, float, str, NoneType):
            kinds.add(float if each is int else each)
        elif is_dataclass(each) or _is_protocol(each):
            kinds.add(dict)
        else:
            return
    given = float if type(value) is int else type(value)
    if given not in kinds and not (isinstance(value, str | int) and value in words):
        wanted = [*map(str, words), *sorted(kind.__name__ for kind in kinds - {NoneType})]
        raise UserError(f"its {name} is {str(value)[:80]!r}, not {' or '.join(wanted)}")


def _alternatives(hint: Any) -> Iterator[Any]:
    """The types of a union, and of the values in lists and mappings."""
    if get_origin(hint) not in (Union, UnionType):
        yield hint
    if get_origin(hint) not in (Callable, type, Literal):
        for each in get_args(hint):
            yield from _alternatives(each)


def _takes_class(hint: Any) -> bool:
    return hint is Callable or get_origin(hint) in (type, Callable) or _is_protocol(hint)


def _is_protocol(hint: Any) -> bool:
    return Protocol in getattr(hint, "__mro__", ())
