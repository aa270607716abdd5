"""What a configuration may build: a class stands only where the type of an argument asks for one."""

import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import typeshed_client
from jsonargparse import ArgumentParser, Namespace, _stubs_resolver, _typehints, set_parsing_settings

from levelfield.errors import UserError

CLASS_PATH = re.compile(r"[a-z_]\w*(\.\w+)*\.[A-Z]\w*")


def restrict_parser() -> None:
    """Keeps jsonargparse from building a class under an argument whose type does not ask for one, and from importing
    what a value names in the modules that run commands (`os`, `subprocess`, ...)."""
    set_parsing_settings(instantiate_subclass_spec_in_any=False, import_path_allowlist=[])
    _typehints.discard_init_args_on_class_path_change = _drop_arguments_of_another_class
    _typehints.union_subtype_sort_key = _whole_numbers_first
    find_stubs()


_rank = _typehints.union_subtype_sort_key


def _whole_numbers_first(subtype: Any) -> int:
    """`limit_train_batches: 1` is one batch, 1.0 are all. Which of `int | float` the Trainer's annotation has first is
    up to what was imported before, for `typing` gives the union of the same types that was made first."""
    return 2 * _rank(subtype) + (subtype is float)


def _drop_arguments_of_another_class(parser: Any, previous: Any, new: Any) -> None:
    """As `merge` does in study files; jsonargparse, which has no setting for it, would keep those of the same name: the
    margin of ArcFaceLoss in degrees as the cosine of CosFaceLoss."""
    if previous and "init_args" in previous and previous["class_path"] != new["class_path"]:
        previous["init_args"] = Namespace()


def find_stubs() -> None:
    """Tells jsonargparse where stubs lie. It would ask a `python -c`, which runs a json.py of the working directory."""
    if _stubs_resolver.stubs_resolver is None:
        places = [Path(place) for place in sys.path if place and place != os.getcwd()]
        context = typeshed_client.get_search_context(search_path=places)
        _stubs_resolver.stubs_resolver = _stubs_resolver.StubsResolver(search_context=context)  # type: ignore[assignment]


def instantiate(
    parser: ArgumentParser, config: Namespace, builders: Mapping[type, Callable[..., Any]] = MappingProxyType({})
) -> Namespace:
    """The objects of a parsed configuration.

    Args:
        builders: what builds the classes below a class instead of their constructors, of the class and its arguments.

    Raises:
        UserError: what a constructor refuses, or a class named under an argument that does not say it takes one.
    """
    builder = _Builder(builders)
    try:
        return parser.instantiate(config, instantiators=[(builder, object, True)])
    except Exception:
        # An argument of several types tries them in turn, and says of each in many words why it failed.
        if builder.refusals:
            raise builder.refusals[-1] from builder.refusals[-1].__cause__
        raise


class _Builder:
    """An instantiator of jsonargparse that keeps what constructors refuse."""

    def __init__(self, builders: Mapping[type, Callable[..., Any]]) -> None:
        self.builders = builders
        self.refusals: list[UserError] = []

    def __call__(self, kind: type, *args: Any, **kwargs: Any) -> Any:
        try:
            _refuse_unbuilt(kind, kwargs)
            _refuse_missing(kind, kwargs)
            for base, build in self.builders.items():
                if issubclass(kind, base) and not args:
                    return build(kind, kwargs)
            return kind(*args, **kwargs)
        except UserError as error:
            self.refusals.append(error)
            raise
        except FileNotFoundError as error:
            self.refusals.append(UserError(f"{kind.__name__}: there is no file '{error.filename}' here"))
            raise self.refusals[-1] from error
        except ValueError as error:  # of a value that the class does not take
            self.refusals.append(UserError(f"{kind.__name__}: {' '.join(str(error).split())}"))
            raise self.refusals[-1] from error


def classes_named(value: Any) -> Iterator[Any]:
    """What stands behind each `class_path` anywhere in a configuration."""
    if isinstance(value, Namespace):
        value = vars(value)
    if isinstance(value, dict):
        if "class_path" in value:
            yield value["class_path"]
        for part in value.values():
            yield from classes_named(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from classes_named(part)


def _refuse_missing(kind: type, kwargs: dict[str, Any]) -> None:
    """Raises if an argument without type and default was not given: the parser takes None for one without type."""
    for name, parameter in _parameters(kind).items():
        untyped = parameter.annotation is inspect.Parameter.empty and parameter.default is inspect.Parameter.empty
        if untyped and name in kwargs and kwargs[name] is None:
            raise UserError(f"{kind.__name__}: the argument '{name}' is required (for a loss: --model.loss.{name})")


def _parameters(kind: type) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(kind).parameters)
    except (ValueError, TypeError):  # of some classes written in C
        return {}


def _refuse_unbuilt(kind: type, kwargs: dict[str, Any]) -> None:
    """Raises if an argument still names a class: its type does not ask for one, so nobody has built it."""
    known = _parameters(kind)
    for name, value in kwargs.items():
        named = list(classes_named(value))
        typed = name in known and known[name].annotation is not inspect.Parameter.empty
        if not typed and isinstance(value, str) and CLASS_PATH.fullmatch(value):
            named.append(value)
        if _is_nested(value):
            named.append(value.val)
        if named:
            raise _unbuilt(named[0], kind.__name__, name)


def refuse_nested(config: Any) -> None:
    """Raises for the command line's `--model.loss.distance.p 2` where `distance` takes no class: it cannot be dumped.

    Raises:
        UserError: there is such an argument in a class of the configuration.
    """
    if not isinstance(config, Namespace | dict):
        return
    parts = vars(config) if isinstance(config, Namespace) else config
    for section, value in parts.items():
        for name, given in vars(value).items() if section == "init_args" and isinstance(value, Namespace) else ():
            if _is_nested(given):
                raise _unbuilt(given.val, str(parts["class_path"]).rpartition(".")[2], name)
        refuse_nested(value)


def _is_nested(value: Any) -> bool:
    return hasattr(value, "_fields") and type(value).__name__ == "NestedArg"


def _unbuilt(named: Any, kind: str, argument: str) -> UserError:
    return UserError(
        f"'{named}' is not built: {kind} does not say that its argument '{argument}' takes a class; "
        f"build it in a class of your own that extends {kind} (my_loss.py)"
    )
