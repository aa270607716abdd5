"""A method that is only a loss: `levelfield study run FILE --add-method my_loss.MyLoss`."""

import inspect
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from levelfield.errors import UserError
from levelfield.runtime.import_path import import_named
from levelfield.runtime.shipped import shipped_files
from levelfield.study.definition.configuration import Config, read_yaml
from levelfield.study.search.space import read_space


def added_methods(paths: Sequence[str]) -> dict[str, Config]:
    """The methods of `--add-method`, by name.

    A method is called as its class is, in small letters; with its module before it where two classes have one name.

    Raises:
        UserError: a loss that cannot be imported, or one that was given twice.
    """
    classes = {path: _loss_class(path) for path in paths}
    for kind, count in Counter([*classes.values()]).items():
        again = [path for path in classes if classes[path] is kind]
        if count > 1 or sum(path in again for path in paths) > 1:
            raise UserError(f"--add-method {again[-1]}: given twice; leave one out")
    names = {path: _snake_case(kind.__name__) for path, kind in classes.items()}
    shared = Counter(names.values())
    for path, kind in classes.items():
        if shared[names[path]] > 1:
            names[path] = f"{re.sub(r'[^a-zA-Z0-9]', '_', kind.__module__)}_{names[path]}"
    if len(set(names.values())) < len(names):
        raise UserError(f"--add-method {paths[-1]}: another added loss has the same name; rename the class")
    return {names[path]: method_of_loss(path)[1] for path in paths}


def method_of_loss(path: str) -> tuple[str, Config]:
    """Name and configuration of a method that is a loss: `my_loss.MyLoss`, or `ArcFaceLoss` for one of ours.

    One of ours has that of its file in `configs/method`. A loss with class weights draws, as the shipped ones, one
    sample of a class. What is searched is the file's `search:`, or a class attribute `search_space`, arguments to
    ranges: `search_space = {"margin": {"low": 0.0, "high": 1.0, "scale": "linear"}}`.

    Raises:
        UserError: it cannot be imported, or the attribute is not a space.
    """
    from levelfield.training.loss_factory import supplied_arguments

    loss = _loss_class(path)
    file = _shipped_file(loss)
    config: Config = {"model": {"loss": {"class_path": f"{_module_name(path)}.{path.rpartition('.')[2]}"}}}
    if file is not None:
        config = read_yaml(file)
    elif "num_classes" in supplied_arguments(loss):
        config["data"] = {"samples_per_class": 1}
    arguments = getattr(loss, "search_space", None)
    if arguments is not None:
        read_space(arguments, f"--add-method {path}: search_space")
        config["search"] = {f"model.loss.init_args.{argument}": place for argument, place in arguments.items()}
    return _snake_case(loss.__name__), config


def _shipped_file(loss: type) -> Path | None:
    """The configuration of a loss of ours; of several the one with the shortest name, which has no miner."""
    if not loss.__module__.startswith("levelfield."):
        return None
    wanted = f"levelfield.losses.{loss.__name__}"
    files = [file for file in shipped_files("method").values() if _class_path(read_yaml(file)) == wanted]
    return min(files, key=lambda file: (len(file.name), file.name), default=None)


def _class_path(config: Config) -> str | None:
    model = config.get("model")
    loss = model.get("loss") if isinstance(model, dict) else None  # another program's file may lie there
    return loss.get("class_path") if isinstance(loss, dict) else loss


def _loss_class(path: str) -> Any:
    option = f"--add-method {path}"
    loss = import_named(f"{_module_name(path)}.{path.rpartition('.')[2]}", option)
    if not inspect.isclass(loss):
        raise UserError(f"{option}: {path} is no class")
    return loss


def _module_name(path: str) -> str:
    return path.rpartition(".")[0] or "levelfield.losses"


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
