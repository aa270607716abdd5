"""The parser of a command that has a page of help, and may take any setting of a training: `study` and `data`."""

from argparse import Action
from collections.abc import Sequence
from typing import Any

from levelfield.study.definition.configuration import parse_value
from levelfield.training.mistakes import OneLineParser


class CommandParser(OneLineParser):
    """`page` is what `--help` prints, and the first word is one of `commands`."""

    def __init__(self, page: str, commands: Sequence[str]) -> None:
        super().__init__()
        self._page = page
        self.add_argument("command", metavar="COMMAND", choices=commands)

    def format_help(self, formatter: Any = None) -> str:
        return self._page

    def add_overrides(self, words: Sequence[str]) -> None:
        """Takes each dotted option among the words into `overrides`: a type that has them all would import torch."""
        options = dict.fromkeys(word.partition("=")[0] for word in words if word.startswith("--"))
        for option in options:
            if "." in option:
                self.add_argument(option, dest="overrides", action=_Override, default={})


class _Override(Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        namespace.overrides = {**namespace.overrides, str(option_string)[2:]: parse_value(values)}
