"""The options of a command, read by argparse, and the settings of a training that are behind them. Needs no torch."""

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from levelfield import __version__
from levelfield.cli.commands import HINTS, MODULES, SETTINGS, TEXTS, WITH_DATA
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

# The type of an option's value, by its name; others are texts.
TYPES: Mapping[str, Any] = {"N": int, "K": int, "MINUTES": float, "DIR": Path, "ARCHIVE": Path}
MARKS: Mapping[str, Mapping[str, Any]] = {
    "!": {"required": True},
    "*": {"action": "append", "default": []},
    "+": {"nargs": "+", "action": "extend", "default": []},
}
# The key of the class that a section's option names, unless that is a file of settings: `--model my_learner.MyLearner`.
CLASS_OF = {"--model": "model.learner", "--data": "data.datamodule"}


def read(name: str, words: Sequence[str]) -> argparse.Namespace:
    """The options of a command, with the `module` that runs it, its `settings` as they were given, and its `words`.

    Raises:
        SystemExit: the help was requested, and is printed.
        UserError: no such command, a misspelt option, or a value that is not accepted.
    """
    kept = [word for word in words if word != "--debug"]
    command, left = Command(""), [name, *kept]
    while command.below:
        word, *left = left or ["--help"]
        if word.startswith("-"):
            command.parse_args([word])  # --help, --version
        if word not in command.below:
            here = option_here(word, HINTS.get(command.module, {}))
            meant = f"; {here}" if here else nearest(word, command.below, "", cutoff=0.6)
            raise UserError(f"no such command '{word}'{meant} ({command.prog} --help lists all)")
        command = Command(command.below[word])
    if name == "predict" and {word.partition("=")[0] for word in words} & {"--data", "-h", "--help"}:
        command = Command(WITH_DATA)
    given = command.read(left)
    given.words, given.debug = [name, *kept], len(kept) < len(words)
    return given


class Command(argparse.ArgumentParser):
    """A command of `levelfield.cli.commands`, or a group of them. A mistake is a UserError of one line."""

    def __init__(self, name: str) -> None:
        layout = partial(argparse.RawDescriptionHelpFormatter, width=120, max_help_position=24)
        self.name, prog = name, f"levelfield {name}".removesuffix(" --data").strip()
        self.module = MODULES.get(name, name.partition(" ")[0])
        names = [each for each in TEXTS if each not in ("", WITH_DATA) and each.rpartition(" ")[0] == name]
        self.below = {each.split()[-1]: each for each in names}  # of a group
        about, _, more = TEXTS[name].partition("\n\n")
        options, _, more = ("", "", more) if self.below else more.partition("\n\n")
        super().__init__(prog, None, about, more, formatter_class=layout, allow_abbrev=False)
        self._negative_number_matcher = re.compile(r"-[\d.]")  # values, -1e-3 too
        given = [self.add_argument(*names, **how) for names, how in options_of(options)]
        needed = [each for each in given if each.required and each.nargs != "*"]
        words = [word for each in needed for word in (*each.option_strings[-1:], str(each.metavar))]
        if self.below:
            self.add_argument("--version", action="version", version=__version__, help=argparse.SUPPRESS)
            sentences = [re.split(r"\.\s", TEXTS[each])[0].replace("\n", " ") for each in self.below.values()]
            lines = [f"  {word:<9} {sentence}" for word, sentence in zip(self.below, sentences, strict=True)]
            self.epilog, words = "\n".join(["commands:", *lines, "", more]), ["COMMAND"]
        self.usage = " ".join([prog, *words, "[OPTIONS]"])

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """The command's own options; `settings` has the others, with their texts, in order."""
        self.set_defaults(settings=[])
        for option in [word.partition("=")[0] for word in words if word.startswith("--")]:
            if not self.takes(option):
                self._refuse(option)  # before what is missing
            if option not in self._option_string_actions:
                self.add_argument(option, action="append", dest="settings", type=partial(_setting, option))
        given = self.parse_intermixed_args(words)
        given.command = self.prog.split()[-1]
        given.module = f"levelfield.cli.{self.module}"
        return given

    def takes(self, option: str) -> bool:
        """Whether it is an option of this command, or a setting that it takes."""
        if option in self._option_string_actions or self.name not in SETTINGS:
            return option in self._option_string_actions
        is_dotted = re.fullmatch(r"--[a-z_]\w*(\.\w+)+\+?", option) is not None
        return is_dotted or option[2:] in (*SECTIONS, *SETTINGS[self.name])

    def _refuse(self, option: str) -> NoReturn:
        here = option_here(option, HINTS.get(self.module, {}))
        if here and here != option:
            raise UserError(f"no such option '{option}'; give {here}")
        users = [name for name in TEXTS if Command(name).takes(option)]
        users = [name for name in users if name.startswith(self.name.rpartition(" ")[0])] or users
        if users:
            command = self.prog.split()[-1]
            raise UserError(f"{option} is an option of {', '.join(users)}: {command} does not use it; leave it out")
        known = [*self._option_string_actions, *(f"--{key}" for key in (*SECTIONS, *SETTINGS.get(self.name, ())))]
        raise UserError(f"no such option '{option}'{nearest(option, known, '; --help lists them', cutoff=0.6)}")

    def error(self, message: str) -> NoReturn:
        message = re.sub(r"^argument ([^\s/:]+)\S*: ", r"\1 ", message)
        raise UserError(message.replace("the following arguments are required:", f"{self.prog} needs"))


def options_of(text: str) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """What `add_argument` takes, for each option in a text (`levelfield.cli.commands`)."""
    for entry in filter(None, re.split(r"\n(?=\S)", text)):
        given, _, about = entry.partition("  ")
        names = tuple(word for word in given.split() if word.startswith("-"))
        value, marks = ([*given.split()[len(names) :], "", ""])[:2]
        how: dict[str, Any] = {"help": " ".join(about.split())}
        if not value:
            yield names, {"action": "store_true", **how}
            continue
        how |= {"metavar": value, "type": TYPES.get(value, str)}
        for mark in marks:
            how |= MARKS[mark] if names else {"nargs": mark}
        yield names or (value.lower(),), how


def _setting(option: str, text: str) -> tuple[str, str]:
    """The key of a setting with its text."""
    path = Path(text)
    if option == "--data" and (path.is_dir() or path.suffix in (".csv", ".parquet")):
        own = "image_folder.yaml --data.dataset.folder" if path.is_dir() else "own_images.yaml --data.dataset.table"
        raise argparse.ArgumentTypeError(f"{text}: for your own data give --config data/{own} {text}")
    is_file = path.is_file() or path.suffix in (".yaml", ".yml")
    return (CLASS_OF[option] if option in CLASS_OF and not is_file else option[2:]), text


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
