"""Plain configuration mappings: read from stacked YAML files, merged, overridden by dotted keys, compared."""

import copy
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from levelfield.errors import UserError
from levelfield.runtime.shipped import find_configuration, nearest_configuration
from levelfield.runtime.yaml_once import OnceLoader, RepeatedKey

Config = dict[str, Any]

CLASS_KEYS = ("class_path", "init_args", "dict_kwargs")


class _Loader(OnceLoader):
    """Safe YAML in which `1e-4` is a number, as the command line reads it (plain YAML 1.1 makes it text)."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)$|^[-+]?[0-9][0-9_]*\.[0-9_]*$"),
    list("-+0123456789."),
)


def parse_value(text: str) -> Any:
    """Read one value of the command line as YAML: `3`, `1e-4`, `true`, `[1, 2]`, text."""
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError:
        return text


def read_yaml(path: Path) -> Config:
    """Read one YAML mapping.

    Raises:
        UserError: the file is missing, is not YAML, holds no mapping or has a key twice.
    """
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; correct the path") from None
    except RepeatedKey as error:
        raise UserError(f"{path}, {error}") from None
    except (yaml.YAMLError, OSError, UnicodeDecodeError, RecursionError) as error:
        problem = " ".join(str(error).split())
        raise UserError(f"{path} cannot be read as YAML: {problem}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UserError(f"{path} must hold a mapping (key: value lines), not {type(content).__name__}")
    return content


def _same_class(old: str, new: str) -> bool:
    """Whether two import paths lead to one class: a package exports what lies deeper, a bare name is short for any."""
    short, long = sorted((old.split("."), new.split(".")), key=len)
    return short[-1] == long[-1] and long[: len(short) - 1] == short[:-1]


def merge(old: Any, new: Any) -> Any:
    """Lay `new` over `old` in a study as the parser of `levelfield fit` lays `--config` files and options.

    Mappings merge key by key, `key+` appends to a list, anything else replaces, a mapping too that is the value of one
    argument. Naming another class drops the old class' arguments; a bare name stands for `{class_path: name}`, and keys
    laid over a class are its arguments.

    Example:
        >>> merge({"class_path": "ArcFaceLoss", "init_args": {"margin": 20}}, {"scale": 30})
        {'class_path': 'ArcFaceLoss', 'init_args': {'margin': 20, 'scale': 30}}
    """
    if isinstance(old, str) and isinstance(new, dict) and "class_path" not in new:
        old = {"class_path": old}
    if isinstance(old, dict) and "class_path" in old:
        return _merge_class(old, new)
    if not isinstance(new, dict) or not isinstance(old, dict | None):
        return copy.deepcopy(new)
    merged = dict(old or {})
    for key, value in new.items():
        if isinstance(key, str) and key.endswith("+"):
            key, value = key[:-1], [*merged.get(key[:-1], []), *(value if isinstance(value, list) else [value])]
        merged[key] = merge(merged.get(key), value)
    return merged


def _merge_class(old: Config, new: Any) -> Any:
    if isinstance(new, str):
        new = {"class_path": new}
    if isinstance(new, dict) and new and not set(new) & set(CLASS_KEYS):
        new = {"init_args": new}
    if not isinstance(new, dict) or not _same_class(old["class_path"], str(new.get("class_path", old["class_path"]))):
        return copy.deepcopy(new)
    arguments, given = dict(old.get("init_args") or {}), new.get("init_args") or {}
    for key, value in given.items():
        is_mapping = isinstance(arguments.get(key), dict) and "class_path" not in arguments[key]
        arguments[key] = copy.deepcopy(value) if is_mapping else merge(arguments.get(key), value)
    return {**old, **new, **({"init_args": arguments} if arguments else {})}


def init_args(part: Any) -> Config:
    """The arguments of a class in a configuration; none where it is its name alone."""
    return (part.get("init_args") or {}) if isinstance(part, dict) else {}


def set_dotted(config: Any, dotted: str, value: Any) -> Any:
    """A copy of `config` with `dotted` set; within a class, a key that is not its path is an argument of it.

    Example:
        >>> set_dotted({"data": {"dataset": {"class_path": "ImageTable"}}}, "data.dataset.table", "t.csv")
        {'data': {'dataset': {'class_path': 'ImageTable', 'init_args': {'table': 't.csv'}}}}
    """
    key, _, rest = dotted.partition(".")
    if isinstance(config, str):
        config = {"class_path": config}
    if isinstance(config, dict) and "class_path" in config and key not in CLASS_KEYS:
        key, rest = "init_args", dotted
    config = config if isinstance(config, dict) else {}
    return {**config, key: set_dotted(config.get(key), rest, value)} if rest else merge(config, {key: value})


def flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) for every leaf, lists being leaves."""
    for key, value in config.items():
        if isinstance(value, dict) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


ABSENT = "nothing"


def first_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """The first dotted key whose values differ, with both values (`ABSENT` where there is none), or None."""
    old_leaves, new_leaves = dict(flatten(old)), dict(flatten(new))
    for key in [*new_leaves, *(key for key in old_leaves if key not in new_leaves)]:
        before, now = old_leaves.get(key, ABSENT), new_leaves.get(key, ABSENT)
        if before != now:
            return key, before, now
    return None


def stack(layers: Any, folder: Path, wanted_by: str) -> Config:
    """Merge a list of paths (relative to `folder`, or of shipped files) and inline mappings, in order."""
    merged: Config = {}
    for layer in layers if isinstance(layers, list) else [layers]:
        if isinstance(layer, dict):
            merged = merge(merged, layer)
        elif isinstance(layer, str):
            file = find_configuration(layer, "study", folder)
            if file is None:
                nearest_name = nearest_configuration(layer, folder)
                raise UserError(f"{folder / layer} (named in {wanted_by}) does not exist{nearest_name}")
            merged = merge(merged, read_yaml(file))
        else:
            raise UserError(f"{wanted_by} must list files or mappings, not {layer!r}")
    return merged


def options_of_file(name: str) -> Config:
    """What a configuration of `levelfield fit` says of its sections, as dotted options of a study.

    Raises:
        UserError: there is no such file, or it holds something else.
    """
    file = find_configuration(name)
    if file is None:
        raise UserError(f"--config {name}: there is no such file{nearest_configuration(name)}")
    options: Config = {}
    for section, settings in read_yaml(file).items():
        if section not in ("model", "data", "trainer") or not isinstance(settings, dict):
            raise UserError(f"--config {file}: {section!r} is no section of model, data and trainer; leave it out")
        options |= {f"{section}.{key}": value for key, value in settings.items()}
    return options


def whole_number(path: Path, key: str, value: Any, smallest: int) -> int:
    """`value` if it is a whole number of at least `smallest`.

    Raises:
        UserError: names the file and the key.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < smallest:
        raise UserError(f"{path}: {key} must be a whole number of at least {smallest}, not {value!r}")
    return value


def read_extended(path: Path, extended_by: tuple[Path, ...] = ()) -> Config:
    """Read a study file and lay it over the one that it `extends`, whose files stay relative to that one's folder.

    `base+` appends to the other's base; methods, spaces, search settings and overrides are laid over its own; any other
    key replaces.

    Raises:
        UserError: the other does not exist, or files extend each other.
    """
    content = read_yaml(path)
    asked = content.pop("extends", None)
    if asked is None:
        return content
    file = find_configuration(str(asked), "study", path.parent)
    if file is None:
        raise UserError(f"{path.parent / str(asked)} (extends of {path}) does not exist; correct the path")
    if file.resolve() in (*extended_by, path.resolve()):
        raise UserError(f"{path}: extends {asked}, which extends this file again; leave one of them out")
    below = read_extended(file, (*extended_by, path.resolve()))
    if "base" in below:
        below["base"] = _placed(below["base"], file.parent)
    for part in ("methods", "spaces"):
        if isinstance(below.get(part), dict):
            below[part] = {name: _placed(layers, file.parent) for name, layers in below[part].items()}
    for key, value in content.items():
        if key == "base+":
            key, value = "base", [*_as_list(below.get("base", [])), *_as_list(value)]
        elif key in ("methods", "spaces", "search") and isinstance(value, dict):
            value = {**(below.get(key) or {}), **value}
        elif key == "overrides":  # a layer each: what one appends (`key+`) is appended where they meet the base
            value = [*_as_list(below.get(key) or []), value or {}]
        below[key] = value
    if isinstance(below.get("methods"), dict) and isinstance(below.get("spaces"), dict):
        left_out = {name for name, layers in below["methods"].items() if layers is None}
        below["spaces"] = {name: space for name, space in below["spaces"].items() if name not in left_out}
    return below


def _as_list(layers: Any) -> list[Any]:
    return layers if isinstance(layers, list) else [layers]


def _placed(layers: Any, folder: Path) -> Any:
    """Layers whose files are found from any folder."""
    if isinstance(layers, list):
        return [_placed(layer, folder) for layer in layers]
    file = find_configuration(layers, "study", folder) if isinstance(layers, str) else None
    return layers if file is None else str(file.resolve())
