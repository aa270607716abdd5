"""A method that is only a loss: `levelfield study run FILE --add-method my_loss.MyLoss`."""

import importlib
import inspect
import re
from pathlib import Path

from levelfield.errors import UserError
from levelfield.study.configuration import Config, nearest, read_yaml
from levelfield.study.search import read_space

SPACES = Path("configs/loss/space")


def method_of_loss(path: str) -> tuple[str, Config]:
    """Name and settings of a method that is a loss: `my_loss.MyLoss`, or `ArcFaceLoss` for one of ours.

    A loss with class weights takes `num_classes` first and, as the shipped ones, draws one sample of a class.

    Raises:
        UserError: it cannot be imported.
    """
    module_name, _, class_name = path.rpartition(".")
    module_name = module_name or "levelfield.losses"
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UserError(
            f"--add-method {path}: no module {error.name!r} in the working directory or among the installed packages"
        ) from None
    loss = getattr(module, class_name, None)
    if not inspect.isclass(loss):
        classes = [name for name, value in vars(module).items() if inspect.isclass(value)]
        raise UserError(f"--add-method {path}: {module_name} has no class {class_name!r}{nearest(class_name, classes)}")
    config: Config = {"model": {"loss": {"class_path": f"{module_name}.{class_name}"}}}
    if next(iter(inspect.signature(loss).parameters), None) == "num_classes":
        config["data"] = {"samples_per_class": 1}
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", class_name).lower(), config


def space_of_loss(path: str, name: str) -> Config:
    """What is searched for an added method, dotted keys to ranges; empty for a loss that says nothing.

    A loss of ours has the file `configs/loss/space/<name>.yaml`; any loss can have a class attribute `search_space`,
    arguments to ranges: `search_space = {"margin": {"low": 0.0, "high": 1.0, "scale": "linear"}}`.

    Raises:
        UserError: the attribute is not a space.
    """
    module_name, _, class_name = path.rpartition(".")
    loss = getattr(importlib.import_module(module_name or "levelfield.losses"), class_name)
    arguments = getattr(loss, "search_space", None)
    file = SPACES / f"{name.removesuffix('_loss')}.yaml"
    if arguments is not None:
        read_space(arguments, f"--add-method {path}: search_space")
        return {f"model.loss.init_args.{argument}": place for argument, place in arguments.items()}
    return read_yaml(file) if loss.__module__.startswith("levelfield.") and file.is_file() else {}
