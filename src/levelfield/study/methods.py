"""The methods that study files and `--add-method` name: files, and losses with their search spaces."""

import ast
import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from levelfield.core.configuration import (
    PACKAGE,
    SHIPPED,
    Config,
    find_configuration,
    read_named,
    read_yaml,
    set_all,
    shipped_files,
)
from levelfield.core.errors import UserError, nearest
from levelfield.core.import_path import import_named
from levelfield.core.paths import find_own_modules
from levelfield.study.search_space import read_space

LOSSES = "levelfield.losses"


def added_methods(names: Sequence[str], wanted_by: str = "--add-method", beside: Path = Path()) -> dict[str, Config]:
    """The methods of `--add-method`, or of a list in a study file, by name.

    Raises:
        UserError: as `read_method`, or two have one name.
    """
    found: dict[str, Config] = {}
    for words in names:
        name, config = read_method(words, f"{wanted_by} {words}", beside)
        if name in found:
            raise UserError(f"{wanted_by} {words}: two methods are named {name!r}; rename one")
        found[name] = config
    return found


def read_method(words: str, wanted_by: str, beside: Path = Path()) -> tuple[str, Config]:
    """Name and configuration of a method.

    It is a file (`my_method.yaml`, or the shipped `ntxent_koleo`), a shipped loss (`ArcFaceLoss` or `arcface`) or your
    own (`my_loss.MyLoss`). A file has its own name, a shipped loss that of its module, another loss that of its class.

    Args:
        wanted_by: What names the method, for messages.

    Raises:
        UserError: there is no such file, the loss cannot be imported, or its `search_space` is not one.
    """
    file = find_configuration(words, "method", beside)
    if file is None and "/" not in words and not words.endswith((".yaml", ".yml")):
        return method_of_loss(words, wanted_by)
    return (file or Path(words)).stem, read_named(words, wanted_by, "method", beside)  # or says which names are near


def method_of_loss(path: str, wanted_by: str) -> tuple[str, Config]:
    """Name and configuration of a method from a loss.

    A shipped loss has its file in `configs/method`, if there is one. Other losses have class attributes: `normalize`,
    `samples_per_class` (1 by default if it has class weights), `loss_lr` and `search_space`. The latter maps arguments
    to ranges, with the value to start from, and `loss_lr` to the range of that rate:
    `search_space = {"margin": {"start": 0.5, "low": 0.0, "high": 1.0}}`. A subclass with its own arguments has its own.

    Raises:
        UserError: it cannot be imported, or the attribute is not a space.
    """
    from levelfield.training.settings import OF_THE_LOSS, parameters

    shipped = _shipped_loss(path, wanted_by)
    if shipped is not None:
        name, class_path = shipped[0], f"{LOSSES}.{shipped[1]}"
        if (file := SHIPPED / "method" / f"{name}.yaml").is_file():
            return name, read_yaml(file)
        own, given = _source_of(*shipped)
    else:
        find_own_modules(path)
        kind: Any = import_named(path, wanted_by)
        if not inspect.isclass(kind):
            raise UserError(f"{wanted_by}: {path} is not a class; give the class of the loss")
        name, class_path = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind.__name__).lower(), path
        classes = parameters(kind).get("num_classes")
        own = {} if classes is None or classes.default is None else {"data.samples_per_class": 1}
        own |= {key: getattr(kind, each) for key in OF_THE_LOSS if hasattr(kind, each := key.partition(".")[2])}
        own_classes = [vars(each) for each in kind.__mro__ if {"search_space", "__init__"} & {*vars(each)}]
        given = own_classes[0].get("search_space")
    config: Config = {"model": {"loss": {"class_path": class_path}}}
    if given is not None:
        ranges = given
        if isinstance(given, dict) and all(isinstance(place, dict) for place in given.values()):
            ranges = {each: {key: place[key] for key in place if key != "start"} for each, place in given.items()}
        read_space(ranges, f"{wanted_by}: search_space")
        keys = {each: f"model.{each}" if each == "loss_lr" else f"model.loss.init_args.{each}" for each in given}
        own |= {keys[each]: place["start"] for each, place in given.items() if "start" in place}
        config["search"] = {keys[each]: ranges[each] for each in given}
    return name, set_all(config, own)


def _shipped_loss(path: str, wanted_by: str) -> tuple[str, str] | None:
    """Module and class of a loss of levelfield, by one of its names; None for a loss of another package."""
    losses = re.findall(rf"from {LOSSES}\.(\w+) import (\w+)", (PACKAGE / "losses/__init__.py").read_text())
    package, _, name = path.rpartition(".")
    if package and package not in (LOSSES, *(f"{LOSSES}.{module}" for module, _ in losses)):
        return None
    for each in losses:
        if name in each:
            return each
    known = [*(file.stem for file in shipped_files("method").values()), *(each for pair in losses for each in pair)]
    near = nearest(name, known, otherwise="")
    raise UserError(f"{wanted_by}: no loss of levelfield or file of configs/method is named {name!r}{near}")


def _source_of(module: str, name: str) -> tuple[Config, Any]:
    """Settings and search space of a shipped loss, from its source: an import would load torch, which takes seconds."""
    tree = ast.parse((PACKAGE / f"losses/{module}.py").read_text(encoding="utf-8"))
    (loss,) = (each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == name)
    values = {ast.unparse(part.targets[0]): part.value for part in loss.body if isinstance(part, ast.Assign)}
    has_classes = "num_classes" in (each.arg for each in ast.walk(loss) if isinstance(each, ast.arg))
    space = ast.literal_eval(values["search_space"]) if "search_space" in values else None
    return {"data.samples_per_class": 1} if has_classes else {}, space
