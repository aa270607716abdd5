"""A command by argparse: its options, and the settings of a training behind them."""

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, Self

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

# The type of an option's value, by the option or by the name of the value.
TYPES: Mapping[str, Any] = {
    **dict.fromkeys(("N", "K"), int),
    **{"MINUTES": float},
    **dict.fromkeys(("--output", "--from", "--figures", "--to"), Path),
}
# The options that train on a table, and on a folder of images.
OWN_DATA = (
    "--config data/own_images.yaml (of texts data/own_texts.yaml) --data.dataset.table",
    "--config data/image_folder.yaml --data.dataset.folder",
)
# The key of the class that a section's option names, unless that is a file of settings: `--model my_learner.MyLearner`.
CLASS_OF = {"--model": "model.learner", "--data": "data.datamodule"}
MARKS: Mapping[str, Mapping[str, Any]] = {
    "!": {"required": True},
    "*": {"action": "append", "default": []},
    "+": {"nargs": "+", "action": "extend", "default": []},
}


class Command(argparse.ArgumentParser):
    """A command, or a group of commands. A mistake is a UserError of one line.

    Args:
        options: its options, as `options_of` reads them.
        hidden: more of them, which the help does not show.
        settings: options without a dot that are settings of a training. None takes no settings at all, not even dotted
            ones (`--trainer.max_epochs 3`).
        other_names: name in other programs to what to give here (`levelfield.core.option_hints`).
        module: the module that runs the command (default: the command's first word).
        **how: arguments of `ArgumentParser`.
    """

    def __init__(
        self,
        options: str = "",
        hidden: str = "",
        settings: Sequence[str] | None = None,
        other_names: Mapping[str, str] = MappingProxyType({}),
        module: str | None = None,
        **how: Any,
    ) -> None:
        layout = partial(argparse.RawDescriptionHelpFormatter, width=120, max_help_position=24)
        super().__init__(**how, formatter_class=layout, allow_abbrev=False)
        self._settings = None if settings is None else [f"--{key}" for key in (*SECTIONS, *settings)]
        self._other_names, self._module = other_names, module
        self.commands: Mapping[str, Command] = {}  # of a group
        self._siblings: Mapping[str, Command] = {}
        given = [self.add_argument(*names, **how) for names, how in options_of(options)]
        for names, how in options_of(hidden):
            self.add_argument(*names, **{**how, "help": argparse.SUPPRESS})
        needed = [each for each in given if each.required and each.nargs != "*"]
        words = [word for each in needed for word in (*each.option_strings[-1:], str(each.metavar))]
        self.usage = " ".join([self.prog, *words, "[OPTIONS]"])

    def group(self) -> Self:
        """Makes it a group, which commands are added to."""
        self._below = self.add_subparsers(title="commands", metavar="COMMAND", prog=self.prog)
        self.commands, self.usage = self._below.choices, f"{self.prog} COMMAND [OPTIONS]"
        return self

    def add(self, name: str, description: str, options: str = "", **how: Any) -> "Command":
        """Adds a command. The first sentence of its description is its line in the group's help.

        A name of two words has no such line, and is for `read` only.
        """
        if " " not in name:
            how["help"] = " ".join(re.split(r"\.(?:\s|$)", description)[0].split())
        return self._below.add_parser(name, description=description, options=options, **how)

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """The command's own options; `settings` has the others, with their texts, in order. Of a group, its command's.

        Raises:
            SystemExit: the help was requested, and is printed.
            UserError: no such command, a misspelt option, or a value that is not accepted.
        """
        if self.commands:
            name, *rest = words or ["--help"]
            if name.startswith("-"):
                self.parse_args([name])  # --help, --version
            if name not in self.commands:
                here = option_here(name, self._other_names)
                meant = f"; {here}" if here else nearest(name, self.commands, "", cutoff=0.6)
                raise UserError(f"no such command '{name}'{meant} ({self.prog} --help lists all)")
            self.commands[name]._siblings = self.commands
            return self.commands[name].read(rest)
        own, settings, left = list[str](), list[tuple[str, str]](), list(words)
        while left:
            word = left.pop(0)
            option, equals, text = word.partition("=")
            if option in self._option_string_actions or not option.startswith("--"):
                own.append(word)
            elif not self.takes(option):
                self._refuse(option)  # before what is missing
            elif not equals and (not left or left[0].startswith("--")):
                raise UserError(f"{option} needs a value")
            else:
                text = text if equals else left.pop(0)
                is_folder, is_file = Path(text).is_dir(), Path(text).is_file() or text.endswith((".yaml", ".yml"))
                if option == "--data" and (is_folder or Path(text).suffix in (".csv", ".parquet")):
                    raise UserError(f"--data {text}: for your own data give {OWN_DATA[is_folder]} {text}")
                settings.append((CLASS_OF[option] if option in CLASS_OF and not is_file else option[2:], text))
        given = self.parse_intermixed_args(own)
        _, first, *last = self.prog.split()
        given.settings, given.command = settings, (last or [first])[0]
        given.module = f"levelfield.cli.{self._module or first}"
        return given

    def takes(self, option: str) -> bool:
        """Whether it is an option of this command, or a setting that it takes."""
        if option in self._option_string_actions or self._settings is None:
            return option in self._option_string_actions
        return option in self._settings or re.fullmatch(r"--[a-z_]\w*(\.\w+)+\+?", option) is not None

    def _refuse(self, option: str) -> NoReturn:
        here = option_here(option, self._other_names)
        if here and here != option:
            raise UserError(f"no such option '{option}'; give {here}")
        if users := [name for name, other in self._siblings.items() if other.takes(option)]:
            command = self.prog.split()[-1]
            raise UserError(f"{option} is an option of {', '.join(users)}: {command} does not use it; leave it out")
        known = [*self._option_string_actions, *(self._settings or ())]
        raise UserError(f"no such option '{option}'{nearest(option, known, '; --help lists them', cutoff=0.6)}")

    def error(self, message: str) -> NoReturn:
        if found := re.search(r"argument ([^\s/:]+)\S*: invalid (\w+) value: '(.*)'", message):
            raise UserError(f"{found[1]} {found[3]}: give {found[2]}")
        message = re.sub(r"the following arguments are required: (.*)", rf"{self.prog} needs \1", message)
        raise UserError(re.sub(r"argument ([^\s/:]+)\S*: expected .*argument.*", r"\1 needs a value", message))


def options_of(text: str) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """What `add_argument` takes, for each option in a text such as `--top K  number of answers`.

    A line that begins with spaces continues the line before. `--resume` has no value, `PATH` is a value without option.
    After a value: `!` is required, `*` may be repeated, `+` too, with several at once. `a|b` are the only values.
    """
    for entry in filter(None, re.split(r"\n(?=\S)", text.strip())):
        given, _, about = entry.partition("  ")
        names = tuple(word for word in given.split() if word.startswith("-"))
        value, marks = ([*given.split()[len(names) :], "", ""])[:2]
        how: dict[str, Any] = {"help": " ".join(about.split())}
        if not value:
            yield names, {"action": "store_true", **how}
            continue
        how |= {"metavar": value, "type": TYPES.get(names[0] if names else "", TYPES.get(value, str))}
        if "|" in value:
            how |= {"choices": value.split("|"), "default": value.partition("|")[0]}
        for mark in marks:
            how |= MARKS[mark] if names else {"nargs": mark}
        yield names or (value.lower(),), how


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
