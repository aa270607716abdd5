"""The parser of a command that has a page of help, and may take any setting of a training: `study` and `data`."""

from argparse import Action
from collections.abc import Mapping, Sequence
from typing import Any

from jsonargparse import Namespace

from levelfield.core.configuration import parse_value
from levelfield.errors import UserError
from levelfield.training.mistakes import OneLineParser


class CommandParser(OneLineParser):
    """`page` is what `--help` prints, and the first word is one of `commands`."""

    def __init__(self, page: str, commands: Sequence[str]) -> None:
        super().__init__()
        self._page = page
        self._used_by: dict[str, Sequence[str]] = {}
        self.add_argument("command", metavar="COMMAND", choices=commands)

    def format_help(self, formatter: Any = None) -> str:
        return self._page

    def add_option(self, *names: str, used_by: Sequence[str], **settings: Any) -> None:
        """An option that only some of the commands use: the others refuse it."""
        self._used_by |= dict.fromkeys(names, used_by)
        self.add_argument(*names, **settings)

    def add_overrides(self, words: Sequence[str], used_by: Sequence[str]) -> None:
        """Takes each dotted option among the words into `overrides`: a type that has them all would import torch."""
        for option in options_of(words):
            if "." in option:
                self.add_option(option, used_by=used_by, dest="overrides", action=_Override, default={})

    def parse_args(self, words: Sequence[str], *more: Any, **kwargs: Any) -> Namespace:  # type: ignore[override]
        parsed = super().parse_args(words, *more, **kwargs)
        for option in options_of(words):
            used_by = self._used_by.get(option, (parsed.command,))
            if parsed.command not in used_by:
                raise UserError(
                    f"{option} is an option of {' and '.join(used_by)}: {parsed.command} does not use it; leave it out"
                )
        return parsed


def options_of(words: Sequence[str]) -> list[str]:
    """The options among the words of a command."""
    return list(dict.fromkeys(word.partition("=")[0] for word in words if word.startswith("--")))


def without_options(words: Sequence[str], options: Mapping[str, int]) -> list[str]:
    """The words of a command without some options, each given with the number of its values."""
    kept, passed_over = [], 0
    for word in words:
        key, equals, _ = word.partition("=")
        if key in options:
            passed_over = 0 if equals else options[key]
        elif passed_over:
            passed_over -= 1
        else:
            kept.append(word)
    return kept


class _Override(Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        key, value = str(option_string)[2:], parse_value(values)
        if key.endswith("+") and key in namespace.overrides:  # each of several appends
            before = namespace.overrides[key]
            value = [
                *(before if isinstance(before, list) else [before]),
                *(value if isinstance(value, list) else [value]),
            ]
        namespace.overrides = {**namespace.overrides, key: value}
