"""The argument parser: no abbreviations, short help, and one line for each mistake, with the nearest right name."""

from __future__ import annotations

import difflib
import inspect
import pkgutil
import re
from collections.abc import Iterable
from typing import Any, NoReturn

from lightning.pytorch.cli import LightningArgumentParser

from levelfield.errors import UserError

# Where the short names of a key are found.
SHORT_NAMES = {
    "model.loss": "levelfield.losses",
    "model.miner": "levelfield.miners",
    "model.trunk": "levelfield.models",
    "model.embedder": "levelfield.models",
    "data.dataset": "levelfield.data.datasets",
}
EXAMPLES = {
    "data.dataset": " (for instance --config configs/data/glyphs.yaml)",
    "model.loss": " (for instance --model.loss ArcFaceLoss)",
}


class LevelfieldParser(LightningArgumentParser):
    """LightningArgumentParser whose `error` raises a `UserError` of one line."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:  # type: ignore[override]
        raise UserError(one_line(message, self)) from ex


def nearest(name: str, names: Iterable[str], cutoff: float = 0.5) -> str:
    """` (did you mean 'x'?)`, or nothing where no name is near."""
    found = difflib.get_close_matches(name, list(names), n=1, cutoff=cutoff)
    return f"; did you mean '{found[0]}'?" if found else ""


def one_line(message: str, parser: LightningArgumentParser) -> str:
    """The cause in a message of jsonargparse, which can run over sixty lines, with the nearest right name."""
    key = _search(r'Parser key "([^"]+)"', message) or _search(r"for key \"?([\w.]+)", message)
    if unknown := _search(r"unrecognized arguments: (--?[\w.]+)", message):
        return f"no such option '{unknown}'{nearest(unknown, _options(parser))}"
    if argument := _search(r"(no such argument '[\w.]+'(; did you mean '[\w.-]+'\?)?)", message):
        return f"--{key}: {argument.replace('--', '')}" if key else argument
    if option := _search(r"Option '([\w.]+)' is not accepted", message):
        owner = _search(r"given class_path '([\w.]+)'", message)
        names = _parameters(owner) if owner else [name.removeprefix("--") for name in _options(parser)]
        return (f"--{key}: " if key else "") + f"no such argument '{option}'{nearest(option, names)}"
    if missing := _search(r"arguments are required: ([\w., ]+)", message):
        keys = [name.strip().removeprefix("fit.") for name in missing.split(",")]
        return "; ".join(f"--{name} is required{EXAMPLES.get(name, '')}" for name in keys)
    if option := _search(r"Key '([\w.]+)' is not expected", message) or _search(r"No action for key \"([\w.]+)\"", message):
        return f"no such key '{option}'{nearest('--' + option, _options(parser)).replace('--', '')}"
    if missing := _search(r"No module named '([\w.]+)'", message):
        return f"--{key}: cannot import '{missing}' (looked in the working directory too)"
    if name := _search(r"Expected a dot import path string: (\S+)", message):
        return f"--{key}: no '{name}'{nearest(name, class_names(key or ''))}"
    lines = [line.strip(" -") for line in message.splitlines() if line.strip(" -")]
    return re.sub(r'^Parser key "([^"]+)":', r"--\1:", " ".join(lines))[:300]


def class_names(key: str) -> list[str]:
    """The classes that `--<key>` takes by their short names."""
    import importlib

    for prefix, package in SHORT_NAMES.items():
        if key.endswith(prefix):
            module = importlib.import_module(package)
            return [name for name in dir(module) if inspect.isclass(getattr(module, name))]
    return []


def _parameters(class_path: str) -> list[str]:
    return list(inspect.signature(pkgutil.resolve_name(class_path)).parameters)


def _options(parser: LightningArgumentParser) -> list[str]:
    return [option for action in parser._actions for option in action.option_strings if option.startswith("--")]


def _search(pattern: str, text: str) -> str | None:
    found = re.search(pattern, text)
    return found.group(1) if found else None
