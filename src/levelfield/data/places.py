"""Remove local folders from published values, and find your own data again."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from levelfield.core.configuration import Loader
from levelfield.core.errors import UserError
from levelfield.core.paths import each_text, is_address, is_place, name_of

MOST_CHARACTERS = 1 << 20  # that are read of a `config.yaml`


def without_way(value: Any, root: str | Path | None = None) -> Any:
    """Plain values with each path relative to `root` or `LEVELFIELD_DATA`, or reduced to its last name.

    Published files must not contain the names of local folders.
    """

    def told(text: str) -> str:
        path = os.path.abspath(text)
        for base in (root, os.environ.get("LEVELFIELD_DATA")):
            if base and is_place(text) and not is_address(text) and Path(path).is_relative_to(os.path.abspath(base)):
                return Path(path).relative_to(os.path.abspath(base)).as_posix()
        return name_of(text)

    return each_text(value, told)


def own_file(path: str | Path, root: str | Path | None) -> Path:
    """The file or folder `path`; if it is missing, the one below `root` or `LEVELFIELD_DATA`, if it exists."""
    for base in ("", root, os.environ.get("LEVELFIELD_DATA")):
        if base is not None and os.path.exists(Path(base, path)):  # False for a name that is too long
            return Path(base, path)
    return Path(path)


def root_in_vain(dataset: object, root: str | Path | None) -> list[str]:
    """A line if `--data.root` is given without effect; else empty."""
    if root is None:
        return []
    if not hasattr(dataset, "root"):
        return [f"--data.root {root} has no effect: {type(dataset).__name__} reads nothing from it"]
    for _, own in _own_paths(dataset):
        if not Path(os.path.abspath(own_file(own, root))).is_relative_to(os.path.abspath(root)):
            return [f"--data.root {root} has no effect: {own} exists without it"]
    return []


def check_is_there(dataset: object, root: str | Path | None) -> None:
    """Raise a UserError that names the option, if the folder or table of a data set does not exist."""
    for name, own in _own_paths(dataset):
        if not os.path.exists(own_file(own, root)):
            raise UserError(f"no {name} {own} here or below the data root: give --data.dataset.{name} PATH")


def _own_paths(dataset: object) -> list[tuple[str, Any]]:
    found = [(name, getattr(dataset, name, None)) for name in ("table", "folder")]
    return [(name, own) for name, own in found if isinstance(own, str | Path)]


def dataset_without_ways(dataset: Mapping[str, Any], root: str | Path | None = None) -> dict[str, Any]:
    """A data set's import path and arguments, without its root and local folders."""
    arguments = dataset.get("init_args") or {}
    root = root or arguments.get("root")
    kept = {name: without_way(value, root) for name, value in arguments.items() if name != "root"}
    return {**dataset, "init_args": kept}


def dataset_found_again(dataset: Mapping[str, Any], config: Path) -> dict[str, Any]:
    """A checkpoint's data set, with the paths from the `config.yaml` next to the checkpoint.

    A path is used if it exists and has the same last name as in the checkpoint.

    Args:
        dataset: import path and arguments, from `dataset_without_ways`.
        config: the fit's `config.yaml`; it need not exist.
    """
    arguments = dict(dataset.get("init_args") or {})
    try:
        with config.open(encoding="utf-8") as file:
            before = yaml.load(file.read(MOST_CHARACTERS), Loader)["data"]["dataset"]["init_args"]
        given = {name: value for name, value in before.items() if isinstance(value, str)}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, yaml.YAMLError):
        given = {}
    for name, value in arguments.items():
        there = given.get(name)
        if there and os.path.exists(there) and Path(os.path.abspath(there)).name == Path(str(value)).name:
            arguments[name] = there
    return {**dataset, "init_args": arguments}
