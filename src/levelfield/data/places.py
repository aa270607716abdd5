"""Where one's own data lie: what results, pages and checkpoints tell of it, and how it is found again."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml


def without_way(value: Any, root: str | Path | None = None) -> Any:
    """An absolute path as its way below `root` or `LEVELFIELD_DATA`, or as its name alone; anything else as it is.

    What leaves the machine does not tell how its folders are called.
    """
    if not isinstance(value, str | Path) or not os.path.isabs(value):
        return str(value) if isinstance(value, Path) else value
    for base in (root, os.environ.get("LEVELFIELD_DATA")):
        if base and Path(value).is_relative_to(os.path.abspath(base)):
            return Path(value).relative_to(os.path.abspath(base)).as_posix()
    return Path(value).name


def own_file(path: str | Path, root: str | Path | None) -> Path:
    """The file or folder `path`; where there is none, the one below `root` or `LEVELFIELD_DATA`, if it is there."""
    for base in ("", root, os.environ.get("LEVELFIELD_DATA")):
        if base is not None and Path(base, path).exists():
            return Path(base, path)
    return Path(path)


def root_in_vain(dataset: object, root: str | Path | None) -> list[str]:
    """A line where `--data.root` is given and nothing is read from it; none where something is."""
    if root is None:
        return []
    own = getattr(dataset, "table", getattr(dataset, "folder", None))
    if not hasattr(dataset, "root"):
        return [f"--data.root {root} is passed over: {type(dataset).__name__} reads nothing from it"]
    if own is not None and not Path(os.path.abspath(own_file(own, root))).is_relative_to(os.path.abspath(root)):
        return [f"--data.root {root} is passed over: {own} is there without it"]
    return []


def dataset_without_ways(dataset: Mapping[str, Any], root: str | Path | None = None) -> dict[str, Any]:
    """A data set's import path and arguments, without its root and the ways to its files."""
    arguments = dataset.get("init_args") or {}
    root = root or arguments.get("root")
    kept = {name: without_way(value, root) for name, value in arguments.items() if name != "root"}
    return {**dataset, "init_args": kept}


def dataset_found_again(dataset: Mapping[str, Any], config: Path) -> dict[str, Any]:
    """A checkpoint's data set, its files where the `config.yaml` beside the checkpoint says that they lie.

    Args:
        dataset: import path and arguments, as `dataset_without_ways` leaves them.
        config: of the fit; it need not exist.
    """
    arguments = dict(dataset.get("init_args") or {})
    try:
        before = yaml.safe_load(config.read_text())["data"]["dataset"]["init_args"]
        given = {name: value for name, value in before.items() if isinstance(value, str)}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError):
        given = {}
    for name, value in arguments.items():
        there = given.get(name, "")
        if os.path.isabs(there) and Path(there).exists() and Path(there).name == Path(str(value)).name:
            arguments[name] = there
    return {**dataset, "init_args": arguments}
