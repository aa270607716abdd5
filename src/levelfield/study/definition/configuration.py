"""Plain configuration mappings: read from stacked YAML files, merged, overridden by dotted keys, compared."""

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from levelfield.errors import UserError

Config = dict[str, Any]

CLASS_KEYS = ("class_path", "init_args", "dict_kwargs")


class _Loader(yaml.SafeLoader):
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


def read_yaml(path: Path, wanted_by: str = "") -> Config:
    """Read one YAML mapping.

    Raises:
        UserError: the file is missing, is not YAML or holds no mapping.
    """
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except FileNotFoundError:
        suffix = f" (named in {wanted_by})" if wanted_by else ""
        raise UserError(f"{path}{suffix} does not exist; correct the path") from None
    except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
        problem = " ".join(str(error).split())
        raise UserError(f"{path} cannot be read as YAML: {problem}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UserError(f"{path} must hold a mapping (key: value lines), not {type(content).__name__}")
    return content


def _same_class(old: str, new: str) -> bool:
    """Short and full import paths of one class are the same class."""
    return old == new or old.endswith("." + new) or new.endswith("." + old)


def merge(old: Any, new: Any) -> Any:
    """Lay `new` over `old`: mappings merge key by key, anything else replaces.

    Naming another class drops the old class' arguments; a bare name stands for `{class_path: name}`.
    """
    if isinstance(old, str) and isinstance(new, dict) and set(new) <= set(CLASS_KEYS[1:]):
        old = {"class_path": old}
    if not isinstance(old, dict):
        return copy.deepcopy(new)
    if "class_path" in old:
        if isinstance(new, str):
            new = {"class_path": new}
        if isinstance(new, dict) and "class_path" in new and not _same_class(old["class_path"], new["class_path"]):
            return copy.deepcopy(new)
    if not isinstance(new, dict):
        return copy.deepcopy(new)
    merged = dict(old)
    for key, value in new.items():
        merged[key] = merge(old[key], value) if key in old else copy.deepcopy(value)
    return merged


def set_dotted(config: Config, dotted: str, value: Any) -> Config:
    """A copy of `config` with `dotted` set; within a class, a key that is not its path is an argument of it.

    Example:
        >>> set_dotted({"data": {"dataset": {"class_path": "ImageTable"}}}, "data.dataset.table", "t.csv")
        {'data': {'dataset': {'class_path': 'ImageTable', 'init_args': {'table': 't.csv'}}}}
    """
    nested: Any = value
    node: Any = config
    path: list[str] = []
    for part in dotted.split("."):
        if isinstance(node, str):
            node = {"class_path": node}
        if isinstance(node, dict) and "class_path" in node and part not in CLASS_KEYS:
            path.append("init_args")
            node = node.get("init_args")
        path.append(part)
        node = node.get(part) if isinstance(node, dict) else None
    for part in reversed(path):
        nested = {part: nested}
    return merge(config, nested)


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


def nearest(name: str, names: Sequence[str]) -> str:
    """`; did you mean 'x'?`, or the list of what there is."""
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; there are: {', '.join(names)}"


def stack(layers: Any, folder: Path, wanted_by: str) -> Config:
    """Merge a list of paths (relative to `folder`) and inline mappings, in order."""
    merged: Config = {}
    for layer in layers if isinstance(layers, list) else [layers]:
        if isinstance(layer, dict):
            merged = merge(merged, layer)
        elif isinstance(layer, str):
            merged = merge(merged, read_yaml(folder / layer, wanted_by))
        else:
            raise UserError(f"{wanted_by} must list files or mappings, not {layer!r}")
    return merged


def whole_number(path: Path, key: str, value: Any, smallest: int) -> int:
    """`value` if it is a whole number of at least `smallest`.

    Raises:
        UserError: names the file and the key.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < smallest:
        raise UserError(f"{path}: {key} must be a whole number of at least {smallest}, not {value!r}")
    return value
