"""A study's `sweep:`, one setting tried at several values, and `trained_as:`, one training tested in two ways."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from levelfield.errors import UserError, nearest
from levelfield.study.definition.configuration import Config, flatten, merge, set_dotted

NAME = r"[A-Za-z0-9_.-]+"
OPEN, CLOSE = "[", "]"
# In which two methods of one training may differ.
OF_THE_TEST = ("model.distance",)


def without_value(method: str) -> str:
    """The method that is swept: `softmax` of `softmax[64]`.

    Example:
        >>> without_value("softmax[64]@2")
        'softmax@2'
    """
    return re.sub(r"\[.*\]", "", method)


def value_of(method: str) -> str | None:
    """The value that a sweep gave a method: `64` of `softmax[64]`; None for one that is not swept."""
    found = re.search(r"\[(.*)\]", method)
    return None if found is None else found[1]


def method_folder(method: str) -> str:
    """What a method's folder is called: `softmax=64` for `softmax[64]`; shells and globs read brackets otherwise."""
    return method.replace(OPEN, "=").replace(CLOSE, "")


def read_sweep(path: Path, asked: Any, key: str | None = None) -> tuple[str, dict[str, Config]]:
    """The dotted key of a `sweep:` and, by the name of each value, the settings that go with it.

    A value in a list is its own name; in a mapping it maps to the settings that follow it, which may set the key
    itself: `data.samples_per_class: {none: {data.sampler: ..., data.samples_per_class: 1}, 5: {}}`.

    Args:
        key: The study's, where `asked` is a method's own sweep, of the same key.

    Raises:
        UserError: it has not one key with values that can be part of a name.
    """
    form = "one dotted key with its values: {model.embedding_size: [64, 128]}"
    if not isinstance(asked, dict) or len(asked) != 1:
        raise UserError(f"{path}: sweep must hold {form}")
    [(swept, values)] = asked.items()
    if key is not None and swept != key:
        raise UserError(f"{path}: a method's own sweep must be of the study's {key}, not of {swept}")
    if isinstance(values, list):
        values = dict.fromkeys(values)
    if not isinstance(values, dict) or not values:
        raise UserError(f"{path}: sweep must hold {form}, or settings by value")
    found: dict[str, Config] = {}
    for value, follows in values.items():
        if not re.fullmatch(NAME, str(value)) or not isinstance(follows, dict | None):
            raise UserError(
                f"{path}: sweep of {swept}: {value!r} cannot be part of a method's name; give it one, with the "
                f"settings that it stands for: {{name: {{{swept}: ...}}}}"
            )
        found[str(value)] = {swept: value, **(follows or {})}
    return swept, found


def sweep_methods(path: Path, asked: Any, configs: Mapping[str, Config]) -> tuple[str, dict[str, Config]]:
    """The swept key, and the methods by name: `softmax[64]` and its like in place of `softmax`.

    A method's own `sweep:` says other values for it, an empty one that it is not swept.

    Raises:
        UserError: a sweep that is none, or a method that has one in a study without.
    """
    if asked is None:
        if own := [name for name, config in configs.items() if "sweep" in config]:
            raise UserError(f"{path}: method {own[0]}: its own sweep needs one of the study")
        return "", dict(configs)
    key, values = read_sweep(path, asked)
    found: dict[str, Config] = {}
    for name, config in configs.items():
        own = config.pop("sweep", asked)
        if not own:
            found[name] = config
            continue
        for value, settings in read_sweep(path, own, key)[1].items() if own is not asked else values.items():
            each = config
            for dotted, setting in settings.items():
                each = set_dotted(each, dotted, setting)
            found[f"{name}{OPEN}{value}{CLOSE}"] = each
    return key, found


def trained_as(path: Path, layers: dict[str, Config]) -> dict[str, str]:
    """Method to the method whose trainings it shares; lays each of the former over what it is trained as.

    Args:
        layers: What each method lays over the study's base; changed.

    Raises:
        UserError: there is no such method, or the two differ in more than how they are tested.
    """
    found = {name: str(layer.pop("trained_as")) for name, layer in layers.items() if "trained_as" in layer}
    for name, other in found.items():
        if other not in layers or other in found:
            known = [each for each in layers if each not in found]
            raise UserError(
                f"{path}: method {name}: trained_as: no method {other!r} with trainings of its own"
                f"{nearest(other, known)}"
            )
        for key, _ in flatten(layers[name]):
            if key not in OF_THE_TEST:
                raise UserError(
                    f"{path}: method {name} is trained as {other}: it cannot set {key}, only {', '.join(OF_THE_TEST)}"
                )
        layers[name] = merge(layers[other], layers[name])
    return found
