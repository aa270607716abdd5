"""The options of a command: its own by argparse, `--config FILE` and the settings of a training."""

import argparse
import re
import textwrap
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from levelfield.core.configuration import (
    SECTIONS,
    Config,
    as_list,
    merge,
    parse_value,
    read_named,
    read_yaml,
    set_dotted,
)
from levelfield.core.errors import UserError, nearest
from levelfield.core.option_hints import option_here

Settings = Sequence[tuple[str, str]]

# The key of the class that a section's option names: `--model my_learner.MyLearner`.
CLASS_OF = {"--model": "model.learner", "--data": "data.datamodule"}
# Columns before the description of an option in the help.
INDENT = 24


class Options(argparse.ArgumentParser):
    """A command's own options and their help. A mistake is a UserError of one line.

    Args:
        pages: The help of each command; "" is for no command. `{options}` stands for the options that the command uses.
        commands: The values of the first word, if the command has subcommands.
        settings: Options without a dot that are settings of a training. None takes no settings at all, not even dotted
            ones (`--trainer.max_epochs 3`).
        settings_used_by: The commands that take settings; all by default.
        other_names: Option of other programs to the option to give here (`levelfield.core.option_hints`).
    """

    def __init__(
        self,
        pages: Mapping[str, str] = MappingProxyType({}),
        commands: Sequence[str] = (),
        settings: Sequence[str] | None = None,
        settings_used_by: Sequence[str] = (),
        other_names: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(allow_abbrev=False, add_help=False)
        self._pages, self._commands, self._other_names = pages, commands, other_names
        self._settings = None if settings is None else [f"--{key}" for key in (*SECTIONS, *settings)]
        self._settings_used_by = settings_used_by or commands
        self._used_by: dict[str, Sequence[str]] = {}
        if commands:
            self.add_argument("command", metavar="COMMAND", choices=commands)

    def add_option(self, *names: str, used_by: Sequence[str], **settings: Any) -> None:
        """Add an option that only some of the commands use; the others reject it."""
        self._used_by |= dict.fromkeys(names, used_by)
        self.add_argument(*names, **settings)

    def hide(self, *names: str) -> None:
        """Leave options out of the help."""
        for name in names:
            self._option_string_actions[name].help = None

    def page(self, words: Sequence[str]) -> str:
        """The help of the command in `words`."""
        command = next((word for word in words if word in self._pages), "")
        used = [
            action
            for action in self._actions
            if action.help and command in self._used_by.get(action.option_strings[0], (command,))
        ]
        return self._pages[command].replace("{options}\n", "".join(map(_described, used)))

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """The command's own options; `settings` has the others, with their texts, in order.

        Raises:
            SystemExit: The help was requested, and is printed.
            UserError: A misspelt command or option, or a value that is not accepted.
        """
        if self._pages and {"-h", "--help"} & set(words):
            print(self.page(words), end="")
            raise SystemExit(0)
        own, settings, left = list[str](), list[tuple[str, str]](), list(words)
        while left:
            word = left.pop(0)
            option, equals, text = word.partition("=")
            if option in self._option_string_actions or not self._is_setting(option):
                own.append(word)
            elif not equals and (not left or left[0].startswith("--")):
                raise UserError(f"{option} needs a value")
            else:
                text = text if equals else left.pop(0)
                if option == "--data" and (Path(text).is_dir() or Path(text).suffix in (".csv", ".parquet")):
                    raise UserError(f"--data {text}: for your own data give {_own_data(text)}")
                settings.append((CLASS_OF[option] if _names_class(option, text) else option[2:], text))
        given = self.parse_args(own)
        given.settings = settings
        used_by = {**self._used_by, **{f"--{key}": self._settings_used_by for key, _ in settings}}
        for option in [word.partition("=")[0] for word in words if word.startswith("--")]:
            if self._commands and given.command not in used_by.get(option, (given.command,)):
                users = " and ".join(used_by[option])
                raise UserError(f"{option} is an option of {users}: {given.command} does not use it; leave it out")
        return given

    def _is_setting(self, option: str) -> bool:
        if self._settings is None:
            return False
        return option in self._settings or re.fullmatch(r"--[a-z_]\w*(\.\w+)+\+?", option) is not None

    def error(self, message: str) -> NoReturn:
        known = [*self._option_string_actions, *(self._settings or ())]
        if found := re.search(r"unrecognized arguments: (-[^\s=]+)", message):
            here = option_here(found[1], self._other_names)
            meant = f"; give {here}" if here else nearest(found[1], known, "; --help lists them", cutoff=0.6)
            raise UserError(f"no such option '{found[1]}'{meant}")
        if found := re.search(r"argument COMMAND: invalid choice: '([^']*)'", message):
            raise UserError(f"no such command '{found[1]}'{nearest(found[1], self._commands)}")
        if found := re.search(r"argument ([^\s/:]+)\S*: invalid (\w+) value: '(.*)'", message):
            raise UserError(f"{found[1]} {found[3]}: give {found[2]}")
        message = re.sub(r"the following arguments are required: (.*)", r"\1 is required", message)
        raise UserError(re.sub(r"argument ([^\s/:]+)\S*: expected .*argument.*", r"\1 needs a value", message))


def _described(action: argparse.Action) -> str:
    """An option's lines in the help."""
    name = " ".join(filter(None, [*action.option_strings[:1], str(action.metavar or "")]))
    lines = textwrap.wrap(str(action.help), width=120 - INDENT)
    lines = ["", *lines] if len(name) > INDENT - 4 else lines
    return "".join(
        f"{start:<{INDENT}}{line}".rstrip() + "\n" for start, line in zip_longest([f"  {name}"], lines, fillvalue="")
    )


def _own_data(path: str) -> str:
    """The options that train on a folder of images or on a table."""
    if Path(path).is_dir():
        return f"--config data/image_folder.yaml --data.dataset.folder {path}"
    return f"--config data/own_images.yaml (of texts data/own_texts.yaml) --data.dataset.table {path}"


def _names_class(option: str, text: str) -> bool:
    """Whether `--model my_learner.MyLearner` names a class, not a file with the section's settings."""
    return option in CLASS_OF and not text.endswith((".yaml", ".yml")) and not Path(text).is_file()


def configuration(files: Sequence[str], settings: Settings) -> Config:
    """Merge `--config` files, and the settings over them, into one mapping.

    Numbers stay text, because only the type of an argument says whether it is a number.

    Raises:
        UserError: No such file, or no mapping in it.
    """
    merged: Config = {}
    for name in files:
        merged = merge(merged, read_named(name, "--config"))
    for key, text in settings:
        value = read_yaml(Path(text)) if key in SECTIONS else parse_value(text)
        merged = set_dotted(merged, key, value if isinstance(value, dict | list) or text == "null" else text)
    return merged


def dotted(files: Sequence[str], settings: Settings) -> Config:
    """Files and settings as a study merges them over its methods: dotted keys with their values.

    Raises:
        UserError: No such file, or one that has more than the settings of sections.
    """
    found: Config = {}
    for name in files:
        for section, content in read_named(name, "--config").items():
            if section not in SECTIONS or not isinstance(content, Mapping):
                raise UserError(f"--config {name}: {section!r} is no section of model, data and trainer; leave it out")
            for key, value in content.items():
                _add(found, f"{section}.{key}", value)
    for key, text in settings:
        _add(found, key, parse_value(text))
    return found


def _add(found: Config, key: str, value: Any) -> None:
    """Add a dotted key. `key+` appends to an earlier one, and `key.argument` belongs to the class appended last."""
    if key.endswith("+"):
        found[key] = [*as_list(found.get(key)), *as_list(value)]
        return
    for appended in found:
        if appended.endswith("+") and key.startswith(f"{appended[:-1]}."):
            found[appended] = set_dotted(found[appended], key.removeprefix(f"{appended[:-1]}."), value)
            return
    for earlier in (key, f"{key}+"):
        found.pop(earlier, None)
    found[key] = value  # last, so that it replaces earlier settings below it


def without_options(words: Sequence[str], options: Mapping[str, int]) -> list[str]:
    """The words of a command without some options, each given with the number of its values."""
    kept, skipped = list[str](), 0
    for word in words:
        key, equals, _ = word.partition("=")
        if key in options:
            skipped = 0 if equals else options[key]
        elif skipped:
            skipped -= 1
        else:
            kept.append(word)
    return kept
