"""A method beside a study's: `levelfield study run FILE --add-method my_loss.MyLoss`, or a file of `configs/method`."""

import inspect
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from levelfield.errors import UserError, nearest
from levelfield.runtime.import_path import import_named
from levelfield.runtime.shipped import find_configuration, nearest_configuration, shipped_files
from levelfield.study.definition.configuration import Config, read_yaml
from levelfield.study.search.space import read_space


def added_methods(given: Sequence[str]) -> dict[str, Config]:
    """The methods of `--add-method`, by name.

    A shipped method (`ntxent_koleo`) or another file (`my_method.yaml`) is called as the file is. A loss is called as
    its class is, in small letters; with its module before it where two classes have one name.

    Raises:
        UserError: a loss that cannot be imported, a file that is none, or one that was given twice.
    """
    files = {words: file for words in given if (file := _method_file(words)) is not None}
    classes = {words: _loss_class(words) for words in given if words not in files}
    for same, count in Counter([*files.values(), *classes.values()]).items():
        again = [words for words, one in {**files, **classes}.items() if one == same]
        if count > 1 or sum(words in again for words in given) > 1:
            raise UserError(f"--add-method {again[-1]}: given twice; leave one out")
    names = {words: file.stem for words, file in files.items()}
    names |= {words: _snake_case(kind.__name__) for words, kind in classes.items()}
    shared = Counter(names.values())
    for words, kind in classes.items():
        if shared[names[words]] > 1:
            names[words] = f"{re.sub(r'[^a-zA-Z0-9]', '_', kind.__module__)}_{names[words]}"
    if len(set(names.values())) < len(names):
        raise UserError(f"--add-method {given[-1]}: another added method has the same name; rename one")
    return {names[words]: read_yaml(files[words]) if words in files else method_of_loss(words)[1] for words in given}


def _method_file(words: str) -> Path | None:
    """The file of a method that is named by its file; None where a loss is named."""
    if (shipped := _shipped_methods().get(words)) is not None:
        return shipped.resolve()
    if not words.endswith((".yaml", ".yml")):
        return None
    file = find_configuration(words, "method")
    if file is None:
        raise UserError(f"--add-method {words}: there is no such file{nearest_configuration(words)}")
    return file.resolve()


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


def _shipped_methods() -> dict[str, Path]:
    return {name.removeprefix("method/").removesuffix(".yaml"): file for name, file in shipped_files("method").items()}


def _shipped_file(loss: type) -> Path | None:
    """The configuration of a loss of ours; of several the one with the shortest name, which has no miner."""
    if not loss.__module__.startswith("levelfield."):
        return None
    wanted = f"levelfield.losses.{loss.__name__}"
    files = [file for file in _shipped_methods().values() if _class_path(read_yaml(file)) == wanted]
    return min(files, key=lambda file: (len(file.name), file.name), default=None)


def _class_path(config: Config) -> str | None:
    model = config.get("model")
    loss = model.get("loss") if isinstance(model, dict) else None  # another program's file may lie there
    return loss.get("class_path") if isinstance(loss, dict) else loss


def _loss_class(path: str) -> Any:
    option = f"--add-method {path}"
    if "." not in path:
        from levelfield import losses  # with torch, which --help does without

        if not hasattr(losses, path):
            near = nearest(path, [*_shipped_methods(), *losses.__all__], otherwise="")
            raise UserError(f"{option}: neither a loss of levelfield's nor a method of configs/method{near}")
    loss = import_named(f"{_module_name(path)}.{path.rpartition('.')[2]}", option)
    if not inspect.isclass(loss):
        raise UserError(f"{option}: {path} is no class")
    return loss


def _module_name(path: str) -> str:
    return path.rpartition(".")[0] or "levelfield.losses"


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
