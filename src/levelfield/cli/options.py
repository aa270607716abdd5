"""The options of a command by argparse, and the settings of a training behind them."""

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
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
Option = tuple[tuple[str, ...], Mapping[str, Any]]

# The key of the class that a section's option names: `--model my_learner.MyLearner`.
CLASS_OF = {"--model": "model.learner", "--data": "data.datamodule"}


class Options(argparse.ArgumentParser):
    """The options of one command. A mistake is a UserError of one line.

    Args:
        name: words of the command, `study run`.
        usage: what follows them.
        about: what the command does.
        options: names and settings of each argument, as `add_argument` takes them.
        end: lines below the options, such as examples.
        settings: options without a dot that are settings of a training. None takes no settings at all, not even dotted
            ones (`--trainer.max_epochs 3`).
        other_names: option of other programs to the option to give here (`levelfield.core.option_hints`).
    """

    def __init__(
        self,
        name: str,
        usage: str,
        about: str,
        options: Iterable[Option] = (),
        end: str = "",
        settings: Sequence[str] | None = None,
        other_names: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(
            *(f"levelfield {name}", f"levelfield {name} {usage}", about, end),
            formatter_class=partial(argparse.RawDescriptionHelpFormatter, width=120, max_help_position=24),
            allow_abbrev=False,
        )
        self.name, self._other_names = name, other_names
        self._settings = None if settings is None else [f"--{key}" for key in (*SECTIONS, *settings)]
        self.siblings: Mapping[str, Options] = {}
        for names, how in options:
            self.add_argument(*names, **how)

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """The command's own options; `settings` has the others, with their texts, in order.

        Raises:
            SystemExit: the help was requested, and is printed.
            UserError: a misspelt option, or a value that is not accepted.
        """
        own, settings, left = list[str](), list[tuple[str, str]](), list(words)
        while left:
            word = left.pop(0)
            option, equals, text = word.partition("=")
            if option.startswith("--") and not self.takes(option):
                self.error(f"unrecognized arguments: {option}")  # before what is missing
            if option in self._option_string_actions or not option.startswith("--"):
                own.append(word)
            elif not equals and (not left or left[0].startswith("--")):
                raise UserError(f"{option} needs a value")
            else:
                text = text if equals else left.pop(0)
                if option == "--data" and (Path(text).is_dir() or Path(text).suffix in (".csv", ".parquet")):
                    raise UserError(f"--data {text}: for your own data give {_own_data(text)}")
                settings.append((CLASS_OF[option] if _names_class(option, text) else option[2:], text))
        given = self.parse_intermixed_args(own)
        given.settings, given.command = settings, self.name.rpartition(" ")[2]
        return given

    def takes(self, option: str) -> bool:
        """Whether it is an option of this command, or a setting that it takes."""
        if option in self._option_string_actions or self._settings is None:
            return option in self._option_string_actions
        return option in self._settings or re.fullmatch(r"--[a-z_]\w*(\.\w+)+\+?", option) is not None

    def error(self, message: str) -> NoReturn:
        if found := re.search(r"unrecognized arguments: (-[^\s=]+)", message):
            option = found[1]
            if users := [name for name, other in self.siblings.items() if other.takes(option)]:
                command = self.name.rpartition(" ")[2]
                raise UserError(
                    f"{option} is an option of {' and '.join(users)}: {command} does not use it; leave it out"
                )
            known, here = (
                [*self._option_string_actions, *(self._settings or ())],
                option_here(option, self._other_names),
            )
            meant = f"; give {here}" if here else nearest(option, known, "; --help lists them", cutoff=0.6)
            raise UserError(f"no such option '{option}'{meant}")
        if found := re.search(r"argument ([^\s/:]+)\S*: invalid (\w+) value: '(.*)'", message):
            raise UserError(f"{found[1]} {found[3]}: give {found[2]}")
        message = re.sub(r"the following arguments are required: (.*)", rf"levelfield {self.name} needs \1", message)
        raise UserError(re.sub(r"argument ([^\s/:]+)\S*: expected .*argument.*", r"\1 needs a value", message))


def read_of(commands: Mapping[str, Options], page: str, words: Sequence[str]) -> argparse.Namespace:
    """The options of the command of a group that the first word names.

    Raises:
        SystemExit: the help was requested, and is printed.
        UserError: no such command, or a mistake in its options.
    """
    if not words or words[0] in ("-h", "--help"):
        print(page, end="")
        raise SystemExit(0)
    if words[0] not in commands:
        raise UserError(f"no such command '{words[0]}'{nearest(words[0], list(commands))}")
    options = commands[words[0]]
    options.siblings = commands
    return options.read(words[1:])


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
