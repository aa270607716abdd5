"""Your own data, from the path of a folder or table, and data sets as plain values for checkpoints."""

import inspect
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from levelfield.core.configuration import Loader
from levelfield.core.errors import UserError
from levelfield.core.init_args import plain
from levelfield.core.paths import strip_paths
from levelfield.data.dataset import TABLES, MetricDataset, find_file
from levelfield.data.datasets import ImageFolder, ImageTable, TextTable

MAX_CHARACTERS = 1 << 20  # that are read of a `config.yaml`


def dataset_from_path(path: str, root: str | None = None) -> MetricDataset | None:
    """The data set of a path: a folder of class folders, or a table of images (`path`) or texts (`text`).

    A table with both columns lists images. A missing path is looked up below `root`, or below LEVELFIELD_DATA if `root`
    is None.

    Returns:
        None if the path is neither a folder nor has the suffix of a table.
    """
    from levelfield.data.tables import column_names  # imports pyarrow, which `levelfield data list` does not need

    file = find_file(path, root)
    if os.path.isdir(file):
        return ImageFolder(path, root)
    if not file.name.lower().endswith(TABLES):
        return None
    columns = column_names(file)
    return TextTable(path, root) if "text" in columns and "path" not in columns else ImageTable(path, root)


def dataset_without_paths(dataset: Mapping[str, Any]) -> dict[str, Any]:
    """A data set's import path and arguments, without its root, and with only the last name of each path."""
    arguments = strip_paths(dataset.get("init_args") or {})
    return {**dataset, "init_args": {name: value for name, value in arguments.items() if name != "root"}}


def dataset_with_paths(dataset: Mapping[str, Any], config: Path) -> dict[str, Any]:
    """A checkpoint's data set, with the paths from the `config.yaml` next to the checkpoint.

    A path is used if it exists and has the same last name as in the checkpoint.

    Args:
        dataset: import path and arguments, from `dataset_without_paths`.
        config: the fit's `config.yaml`; it need not exist.
    """
    arguments = dict(dataset.get("init_args") or {})
    with suppress(Exception), config.open(encoding="utf-8") as file:  # it may be missing, or anything
        given = yaml.load(file.read(MAX_CHARACTERS), Loader)["data"]["dataset"]["init_args"]
        for name, path in given.items():
            exists = isinstance(path, str) and os.path.exists(path)
            if exists and name in arguments and Path(os.path.abspath(path)).name == Path(str(arguments[name])).name:
                arguments[name] = path
    return {**dataset, "init_args": arguments}


def class_and_arguments(made: Any) -> dict[str, Any]:
    """Import path and arguments of an object, which are read from its attributes of the same names.

    Arguments become plain values: an object becomes its own import path and arguments, and a path becomes a text.

    Raises:
        UserError: an argument has no such attribute, or cannot be a plain value.
    """
    kind, values = type(made), dict[str, Any]()
    try:
        names = list(inspect.signature(kind).parameters)
    except ValueError:  # of a class that is not written in Python
        raise UserError(f"{kind.__name__} does not say its arguments: give an object of your own class") from None
    for name in names:
        if not hasattr(made, name):
            raise UserError(f"{kind.__name__} takes the argument {name}: store it as self.{name}")
        try:
            values[name] = plain(getattr(made, name), _object)
        except (UserError, ValueError, TypeError, RecursionError):
            raise UserError(
                f"{kind.__name__} takes the argument {name} of type {type(getattr(made, name)).__name__}, which no "
                "checkpoint can hold: give plain values, or an object that stores its own arguments under their names"
            ) from None
    return {"class_path": f"{kind.__module__}.{kind.__qualname__}", "init_args": values}


def _object(value: Any) -> dict[str, Any]:
    described = class_and_arguments(value)
    if not described["init_args"] and vars(value):  # `vars` raises TypeError for objects of C
        raise TypeError("an object whose state is not in its arguments")
    return described


def dataset_spec(dataset: MetricDataset) -> dict[str, Any]:
    """A data set as import path and arguments, without local folders."""
    return dataset_without_paths(class_and_arguments(dataset))
