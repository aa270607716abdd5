"""`--add-method`: add a loss (`my_loss.MyLoss`) or a file of `configs/method` to a study."""

import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from levelfield.core.configuration import (
    FOLDERS,
    SHIPPED,
    Config,
    read_named,
    read_yaml,
    set_dotted,
    shipped_files,
)
from levelfield.core.errors import UserError, nearest
from levelfield.core.import_path import import_named
from levelfield.study.search_space import read_space


def added_methods(given: Sequence[str]) -> dict[str, Config]:
    """The methods of `--add-method`, by name.

    A shipped method (`ntxent_koleo`) or another file (`my_method.yaml`) gets the name of the file. A loss gets the name
    of its class in lower case.

    Raises:
        UserError: a loss cannot be imported, a file is missing, or two have one name.
    """
    found: dict[str, Config] = {}
    for words in given:
        if (shipped := _shipped_methods().get(words)) is not None:
            name, config = shipped.stem, read_yaml(shipped)
        elif words.endswith((".yaml", ".yml")):
            name, config = Path(words).stem, read_named(words, "--add-method", "method")
        else:
            name, config = method_of_loss(words)
        if name in found:
            raise UserError(f"--add-method {words}: two added methods are named {name!r}; rename one")
        found[name] = config
    return found


def method_of_loss(path: str) -> tuple[str, Config]:
    """Name and configuration of a method from a loss: `my_loss.MyLoss`, or the shipped `ArcFaceLoss`.

    A shipped loss has the configuration and the `search:` of its file in `configs/method`. Another loss takes its class
    attributes `normalize`, `samples_per_class` (1 by default if it has class weights) and `loss_lr`. Its attribute
    `search_space` maps arguments to ranges: `search_space = {"margin": {"low": 0.0, "high": 1.0}}`.

    Raises:
        UserError: it cannot be imported, or the attribute is not a space.
    """
    from levelfield.training.loss_factory import supplied_arguments
    from levelfield.training.settings import OF_THE_LOSS

    kind = _loss_class(path)
    file = _file_of_shipped(kind)
    config: Config = {"model": {"loss": {"class_path": f"{_module(path)}.{path.rpartition('.')[2]}"}}}
    if file is not None:
        config = read_yaml(file)
    else:
        own = {"data.samples_per_class": 1} if "num_classes" in supplied_arguments(kind) else {}
        own |= {key: getattr(kind, name) for key in OF_THE_LOSS if hasattr(kind, name := key.partition(".")[2])}
        for key, value in own.items():
            config = set_dotted(config, key, value)
    space = getattr(kind, "search_space", None)
    if space is not None:
        read_space(space, f"--add-method {path}: search_space")
        config["search"] = {f"model.loss.init_args.{argument}": place for argument, place in space.items()}
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind.__name__).lower(), config


def _shipped_methods(folders: Sequence[Path] = FOLDERS) -> dict[str, Path]:
    files = shipped_files("method", folders)
    return {name.removeprefix("method/").removesuffix(".yaml"): file for name, file in files.items()}


def _file_of_shipped(loss: type) -> Path | None:
    """The file of a shipped loss; of several files the one with the shortest name, which has no miner."""
    if not loss.__module__.startswith("levelfield."):
        return None
    wanted = f"levelfield.losses.{loss.__name__}"
    files = [file for file in _shipped_methods([SHIPPED]).values() if _loss_of(read_yaml(file)) == wanted]
    return min(files, key=lambda file: (len(file.name), file.name), default=None)


def _loss_of(config: Config) -> str | None:
    model = config.get("model")
    loss = model.get("loss") if isinstance(model, dict) else None  # the file may be of another program
    return loss.get("class_path") if isinstance(loss, dict) else loss


def _loss_class(path: str) -> Any:
    option = f"--add-method {path}"
    if "." not in path:
        from levelfield import losses  # imports torch, which --help does not need

        if not hasattr(losses, path):
            near = nearest(path, [*_shipped_methods(), *losses.__all__], otherwise="")
            raise UserError(f"{option}: no loss of levelfield and no file of configs/method has this name{near}")
    kind = import_named(f"{_module(path)}.{path.rpartition('.')[2]}", option)
    if not inspect.isclass(kind):
        raise UserError(f"{option}: {path} is not a class; give the class of the loss")
    return kind


def _module(path: str) -> str:
    return path.rpartition(".")[0] or "levelfield.losses"
