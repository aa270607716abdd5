"""One line for each mistake in words that jsonargparse parses, with the nearest right name; needs no torch."""

import inspect
import pkgutil
import re
from typing import Any, NoReturn

from jsonargparse import ArgumentParser

from levelfield.errors import UserError, nearest
from levelfield.runtime.import_path import why_not_importable

# Where the short names of a key are found, and the class that they extend.
SHORT_NAMES = {
    "model.loss": ("levelfield.losses", "MetricLoss"),
    "model.miner": ("levelfield.miners", "Miner"),
    "model.regularizer": ("levelfield.regularizers", "Regularizer"),
    "model.trunk": ("levelfield.models", "Trunk"),
    "model.embedder": ("levelfield.models", "Embedder"),
    "model.adapter": ("levelfield.models", "LoRA"),
    "data.dataset": ("levelfield.data.datasets", "MetricDataset"),
    "data.sampler": ("levelfield.data.samplers", "TrainingBatchSampler"),
}
QUOTED_CLASS_PATH = r"class_path['\"]?[=:] ?['\"]?([\w.]+)"  # as messages quote a configuration
EXAMPLES = {
    "data.dataset": " (for instance --config configs/data/glyphs.yaml)",
    "model.loss": " (for instance --model.loss ArcFaceLoss)",
}


class OneLineParser(ArgumentParser):
    """An argument parser that takes no abbreviations, and whose mistakes are UserErrors of one line."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "allow_abbrev": False})

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        raise UserError(one_line(message, self)) from ex


def one_line(message: str, parser: ArgumentParser) -> str:
    """The cause in a message of jsonargparse, which can run over sixty lines, with the nearest right name."""
    key = _search(r'Parser key "([^"]+)"', message) or _search(r"for key \"?([\w.]+)", message)
    if denied := _search(r"Importing '([\w.]+)' is not allowed", message):
        return f"--{key}: '{denied}' cannot stand in a configuration: its module runs commands or changes files"
    if unknown := _search(r"unrecognized arguments: (--?[\w.-]+)", message):
        return no_such_option(unknown, options_of(parser))
    if option := _search(r"argument (--[\w.-]+).*: expected (?:at least )?one argument", message):
        return f"{option} needs a value"
    if wrong := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message):
        return f"no such command '{wrong[1]}'{nearest(wrong[1], re.findall('[a-z]+', wrong[2]), '')}"
    if str(key).endswith("loss") and (option := _search(r"no such argument '(num_classes|embedding_size)'", message)):
        return f"--{key}.{option} is supplied, for folds differ in their classes: leave it out"
    if argument := _search(r"(no such argument '[\w.]+'(; did you mean '[\w.-]+'\?)?)", message):
        return f"--{key}: {argument.replace('--', '')}" if key else argument
    if option := _search(r"Option '([\w.]+)' is not accepted", message):
        owner = _search(r"given class_path '([\w.]+)'", message)
        names = _parameters(owner) if owner else [name.removeprefix("--") for name in options_of(parser)]
        return (f"--{key}: " if key else "") + f"no such argument '{option}'{nearest(option, names, '')}"
    if key and (name := _search(r"(?:--|\b)([\w.]+) is required", message)):
        return f"--{key}.{name} is required"
    if missing := _search(r"arguments are required: ([\w., ]+)", message):
        keys = [name.strip().removeprefix("fit.") for name in missing.split(",")]
        words = {action.dest: action.metavar for action in parser._actions if not action.option_strings}
        return "; ".join(f"{words.get(name) or '--' + name} is required{EXAMPLES.get(name, '')}" for name in keys)
    if refused := re.search(r"(?:Group '(.+)'|Subcommand '\w+') does not accept option '([\w.]+)'", message):
        message = f"Key '{'.'.join(filter(None, refused.groups()))}' is not expected"
    if option := _search(r"Key '([\w.]+)' is not expected", message) or _search(
        r"No action for key \"([\w.]+)\"", message
    ):
        return no_such_key(option, options_of(parser))
    if several := re.search(r"Multiple subclasses with name (\w+)\. .*?: ([\w., ]+)", message):
        return f"--{key}: '{several[1]}' names several classes; give one whole: {several[2].strip()}"
    if key and (inner := _search(r"(?m)^[\s-]*--([\w.]+ .+: give .+)$", message)):  # said of an argument of a class
        return f"--{key}.{inner}"
    for path in _import_paths(message):
        if reason := why_not_importable(path):
            return f"--{key}: {reason}"
        if "LossFactory" in message and not hasattr(pkgutil.resolve_name(path), "state_dict"):
            return f"--{key}: '{path}' is no torch.nn.Module: extend that class, with forward(embeddings, labels)"
    if name := _search(r"Expected a dot import path string: (\S+)", message):
        names = class_names(key or "")
        few = f"; give {', '.join(names)}" if 0 < len(names) < 5 else ""
        return f"--{key}: no '{name}'{nearest(name, names, few)}"
    if key and "class_path" not in message and (value := _search(r"(?:Got|Given) value: (.+)$", message)):
        types = _search(r"Subtypes: \[(.+)\]", message) or _search(r"Expected an? (.+?)\. Got", message) or ""
        plain = re.sub(r"<class '(\w+)'>", r"\1", types).replace("NoneType", "null")
        plain = re.sub(r"typing\.Literal\[(.*?)\]", r"\1", plain)
        return f"--{key} {value}: give {plain}"
    lines = [line.strip(" -") for line in message.splitlines() if line.strip(" -")]
    return re.sub(r'^Parser key "([^"]+)":', r"--\1:", " ".join(lines))[:300]


def _import_paths(message: str) -> list[str]:
    """The dotted names that a message says could not be had."""
    places = (
        r"Expected a path but ([\w.]+) either",
        r"given class_path '([\w.]+)'",
        r"Got value: ([\w.]+)",
        QUOTED_CLASS_PATH,
    )
    found = [path for place in places for path in re.findall(place, message)]
    return [path for path in found if re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", path)]


def class_names(key: str) -> list[str]:
    """The classes that `--<key>` takes by their short names."""
    import importlib

    for suffix, (package, base) in SHORT_NAMES.items():
        if key.endswith(suffix):
            module = importlib.import_module(package)
            classes = {name: getattr(module, name) for name in module.__all__ if inspect.isclass(getattr(module, name))}
            return [name for name, kind in classes.items() if _is_choice(kind, getattr(module, base, None))]
    return []


def _is_choice(kind: type, base: type | None) -> bool:
    """Whether a class can be built: it is not abstract, and not a base that others extend."""
    if base is not None and not issubclass(kind, base):
        return False
    extending: list[type] = kind.__subclasses__()
    ours = any(each.__module__.startswith("levelfield.") for each in extending)
    return not inspect.isabstract(kind) and not (base is not None and ours and base in kind.__mro__[:2])


def _parameters(class_path: str) -> list[str]:
    return list(inspect.signature(pkgutil.resolve_name(class_path)).parameters)


def options_of(parser: ArgumentParser) -> list[str]:
    """The long options of a parser and of its subcommands."""
    inner = [action.choices.values() for action in parser._actions if isinstance(action.choices, dict)]
    parsers = [parser, *(each for several in inner for each in several)]
    actions = [action for each in parsers for action in each._actions]
    return [option for action in actions for option in action.option_strings if option.startswith("--")]


def no_such_option(option: str, options: list[str]) -> str:
    return f"no such option '{option}'{nearest(option, options, '')}"


def no_such_key(key: str, options: list[str]) -> str:
    return f"no such key '{key}'{nearest('--' + key, options, '').replace('--', '')}"


def _search(pattern: str, text: str) -> str | None:
    found = re.search(pattern, text)
    return found.group(1) if found else None
