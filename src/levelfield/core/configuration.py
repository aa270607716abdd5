"""Configurations: YAML files found by name, merged, changed by dotted keys, compared. Needs no torch."""

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

import levelfield
from levelfield.core.errors import UserError, nearest

Config = dict[str, Any]

SECTIONS = ("model", "data", "trainer")
CLASS_KEYS = ("class_path", "init_args", "dict_kwargs")
MOST_VALUES = 1_000_000
ABSENT = "nothing"
PACKAGE = Path(levelfield.__file__).parent
# In the package of an installed wheel, or at the top of a checkout.
SHIPPED = (PACKAGE if (PACKAGE / "configs").is_dir() else PACKAGE.parents[1]) / "configs"
FOLDERS = (Path("configs"), SHIPPED)  # the working directory comes first
OURS = "levelfield:"  # before a name: the shipped file, whatever is in the working directory


def find_configuration(name: str, kind: str = "", beside: Path = Path()) -> Path | None:
    """The file `name`: a path, or a shipped file: `configs/data/glyphs.yaml`, `data/glyphs.yaml`, `data/glyphs`.

    A path is relative to `beside`. Files in the folder `kind` of `configs`, such as `study`, also have a short name.
    """
    if name.startswith(OURS):
        return SHIPPED / name.removeprefix(OURS)
    inner = re.sub(r"^(\.{1,2}/|configs/)+", "", name)
    folders = [SHIPPED] if beside.is_relative_to(SHIPPED) else FOLDERS  # what a shipped file names is shipped
    places = [beside / name, *(folder / part / inner for folder in folders for part in ("", kind))]
    files = (path for place in places for path in (place, Path(f"{place}.yaml")))
    return next((path for path in files if path.is_file()), None)


def shipped_files(kind: str = "*", folders: Sequence[Path] = FOLDERS) -> dict[str, Path]:
    """Name (`data/glyphs.yaml`) to file of all configurations, or of those below one folder of `configs`."""
    files = [(folder, file) for folder in reversed(folders) for file in folder.glob(f"{kind}/**/*.yaml")]
    return {file.relative_to(folder).as_posix(): file for folder, file in files}


class Loader(yaml.SafeLoader):
    """Safe YAML with `1e-4` as a number, no key twice in a mapping, and no aliases that expand to a huge file."""

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if node is not None and _values(node, {}) > MOST_VALUES:
            raise yaml.YAMLError(f"its aliases expand to more than {MOST_VALUES:,} values, or one contains itself")
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if (key.tag, key.value) in seen:
                line = key.start_mark.line + 1
                raise yaml.YAMLError(f"line {line}: {key.value!r} is twice in one mapping; leave one of them out")
            seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)$|^[-+]?[0-9][0-9_]*\.[0-9_]*$"),
    list("-+0123456789."),
)


def _values(node: yaml.Node, counted: dict[int, float]) -> float:
    """The number of values in a node with its aliases expanded; infinite if an alias contains itself."""
    if id(node) not in counted:
        counted[id(node)] = float("inf")  # met again before it is counted: it contains itself
        parts = node.value if isinstance(node, yaml.CollectionNode) else []
        inner = [part for each in parts for part in (each if isinstance(each, tuple) else (each,))]
        counted[id(node)] = 1 + sum(_values(part, counted) for part in inner)
    return counted[id(node)]


def parse_value(text: str) -> Any:
    """Read one value of the command line as YAML: `3`, `1e-4`, `true`, `[1, 2]`, text."""
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError:
        return text


def read_yaml(path: Path) -> Config:
    """Read one YAML mapping, or raise a UserError."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader)
    except (yaml.YAMLError, OSError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path} cannot be read as YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict | None):
        raise UserError(f"{path} must be a mapping (lines of key: value), not {type(content).__name__}")
    return content or {}


def read_named(name: str, wanted_by: str, kind: str = "", beside: Path = Path()) -> Config:
    """Read what `find_configuration` finds; `wanted_by` is what names the file, for a message: `--config`."""
    if (file := find_configuration(name, kind, beside)) is not None:
        return read_yaml(file)
    here = [str(Path(name).parent / near.name) for near in (beside / name).parent.glob("*.yaml")]
    shipped = [place + near for place in ("", "configs/") for near in shipped_files()]
    raise UserError(f"{wanted_by}: no file '{name}'{nearest(name, here + shipped, '; correct the path', cutoff=0.6)}")


def stack(layers: Any, folder: Path, wanted_by: str, base: Mapping[str, Any] = MappingProxyType({})) -> Config:
    """Merge a list of files (relative to `folder`, or shipped) and inline mappings over `base`, in order."""
    merged = dict(base)
    for layer in as_list(layers):
        if not isinstance(layer, str | dict):
            raise UserError(f"{wanted_by} must list files or mappings, not {layer!r}")
        merged = merge(merged, read_named(layer, wanted_by, "study", folder) if isinstance(layer, str) else layer)
    return merged


def merge(old: Any, new: Any) -> Any:
    """Merge `new` over `old`: files and options of a fit, layers of a study.

    Mappings merge key by key, and `key+` appends to a list. Anything else replaces the old value, also the mapping of
    one argument. Another class drops all old arguments. A bare name means `{class_path: name}`, and keys merged over a
    class are its arguments.

    Example:
        >>> merge({"class_path": "ArcFaceLoss", "init_args": {"margin": 20}}, {"scale": 30})
        {'class_path': 'ArcFaceLoss', 'init_args': {'margin': 20, 'scale': 30}}
    """
    if isinstance(old, str) and isinstance(new, dict) and "class_path" not in new:
        old = {"class_path": old}
    if isinstance(old, dict) and "class_path" in old:
        return _merge_class(old, new)
    if not isinstance(new, dict) or not isinstance(old, dict | None) or (old and "class_path" in new):
        return copy.deepcopy(new)
    merged = dict(old or {})
    for key, value in new.items():
        if isinstance(key, str) and key.endswith("+"):
            key, value = key[:-1], [*as_list(merged.get(key[:-1])), *as_list(value)]
        merged[key] = merge(merged.get(key), value)
    return merged


def _merge_class(old: Config, new: Any) -> Any:
    if isinstance(new, str):
        new = {"class_path": new}
    if isinstance(new, dict) and new and not set(new) & set(CLASS_KEYS):
        new = {"init_args": new}
    if not isinstance(new, dict) or not _same_class(old["class_path"], str(new.get("class_path", old["class_path"]))):
        return copy.deepcopy(new)
    arguments = dict(init_args(old))
    for key, value in init_args(new).items():
        is_mapping = isinstance(arguments.get(key), dict) and "class_path" not in arguments[key]
        arguments[key] = copy.deepcopy(value) if is_mapping else merge(arguments.get(key), value)
    return {**old, **new, **({"init_args": arguments} if arguments else {})}


def _same_class(old: str, new: str) -> bool:
    """Whether two import paths can mean one class: a package may export it, and a bare name has no package."""
    short, long = sorted((old.split("."), new.split(".")), key=len)
    return short[-1] == long[-1] and long[: len(short) - 1] == short[:-1]


def set_dotted(config: Any, dotted: str, value: Any) -> Any:
    """A copy of `config` with `dotted` set; a key below a class is an argument of the class.

    In a list, keys belong to the last entry: `trainer.callbacks+ EarlyStopping`, `trainer.callbacks.monitor x`.

    Example:
        >>> set_dotted({"data": {"dataset": {"class_path": "ImageTable"}}}, "data.dataset.table", "t.csv")
        {'data': {'dataset': {'class_path': 'ImageTable', 'init_args': {'table': 't.csv'}}}}
    """
    if isinstance(config, list) and config:
        return [*config[:-1], set_dotted(config[-1], dotted, value)]
    key, _, rest = dotted.partition(".")
    if isinstance(config, str):
        config = {"class_path": config}
    if isinstance(config, dict) and "class_path" in config and key not in CLASS_KEYS:
        key, rest = "init_args", dotted
    config = config if isinstance(config, dict) else {}
    return {**config, key: set_dotted(config.get(key), rest, value)} if rest else merge(config, {key: value})


def set_all(config: Config, settings: Mapping[str, Any]) -> Config:
    """A copy of `config` with several dotted keys set."""
    for key, value in settings.items():
        config = set_dotted(config, key, value)
    return config


def as_list(given: Any) -> list[Any]:
    """The values of a key that takes one value or a list."""
    return [] if given is None else list(given) if isinstance(given, list | tuple) else [given]


def init_args(part: Any) -> Config:
    """The arguments of a class in a configuration; empty for a bare name."""
    return (part.get("init_args") or {}) if isinstance(part, dict) else {}


def texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Dotted key and value of each text in a configuration; a class path has the key of its argument."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from texts(part, key if name in CLASS_KEYS else f"{key}.{name}".lstrip("."))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from texts(part, key)
    elif isinstance(value, str):
        yield key, value


def flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of every leaf; a list is a leaf."""
    for key, value in config.items():
        if isinstance(value, dict) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def first_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """The first dotted key whose values differ, with both values (`ABSENT` for a missing one), or None."""
    before, now = dict(flatten(old)), dict(flatten(new))
    pairs = ((key, before.get(key, ABSENT), now.get(key, ABSENT)) for key in now | before)
    return next((pair for pair in pairs if pair[1] != pair[2]), None)
