"""What `levelfield fit` takes, stored, so that its help and a misspelt key need no torch.

The parser is made from signatures, and to import what they belong to takes several times as long as torch alone. Where
it was made only to print its help or to say what is wrong, it leaves its help and its names in a file below
`LEVELFIELD_CACHE`. The file says what it follows from, the code of levelfield and the versions of the libraries, and is
not used with any other. It refuses what cannot be right, in the parser's words, and decides nothing else: a learner of
one's own, a value, the arguments of a class that it does not know are for the parser.
"""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from levelfield.errors import UserError
from levelfield.runtime.cache_root import cache_root
from levelfield.runtime.shipped import PACKAGE
from levelfield.storage.atomic import write_json
from levelfield.training.mistakes import (
    no_such_argument,
    no_such_key,
    no_such_option,
)
from levelfield.training.words import config_files, files_found, learner_named, set_aside, texts_in

# Beside a class's own arguments, behind its key.
SUPPLIED = ("num_classes", "embedding_size")  # by a learner, wherever a class asks for them
PARTS_OF_A_CLASS = ("class_path", "init_args", "dict_kwargs", "help", *SUPPLIED)


@dataclass(frozen=True)
class StoredOptions:
    """The help and the names of a parser.

    Args:
        follows_from: a digest of the code and the versions that they come from.
        help: what `--help` prints.
        options: all option strings, `--model.loss` among them.
        linked: keys of a written configuration that follow from an option, and are none: `model.seed`.
        arguments: of a key, `model.loss`, the short name of each class and the arguments that it takes.
    """

    follows_from: str
    help: str
    options: list[str]
    linked: list[str]
    arguments: dict[str, dict[str, list[str]]]

    def refuse(self, words: Sequence[str]) -> None:
        """Say what the parser would say of a key that there is not.

        Raises:
            UserError: a key of a configuration file, an argument of a class, or an option, in this order.
        """
        for content in config_files(words):
            for key in self._unknown_keys(set_aside(content)):
                raise UserError(no_such_key(key, self.options))
        options = [(at, word.partition("=")[0].rstrip("+")) for at, word in enumerate(words)]
        options = [(at, option) for at, option in options if re.fullmatch(r"--[A-Za-z][\w.-]*", option)]
        for at, option in options:
            self._refuse_argument(option.removeprefix("--"), words[:at])
        for _, option in options:
            if not self._knows(option):
                raise UserError(no_such_option(option, self.options))

    @property
    def _sections(self) -> set[str]:
        """The options that others lie below: `--model`."""
        return {outer for option in self.options if not option.endswith(".help") for outer in _outer(option)}

    def _knows(self, option: str) -> bool:
        """Whether there is such an option, or one that may take this as a key of its value."""
        return option in self.options or any(
            outer in self.options and outer not in self._sections for outer in _outer(option)
        )

    def _unknown_keys(self, content: dict[str, Any], above: str = "") -> Iterator[str]:
        for name, value in content.items():
            key = f"{above}{name}".rstrip("+")
            if not self._knows(f"--{key}") and key not in self.linked:
                yield _first_leaf(key, value)
            elif f"--{key}" in self._sections and isinstance(value, dict):
                yield from self._unknown_keys(value, f"{key}.")

    def _refuse_argument(self, option: str, before: Sequence[str]) -> None:
        key, _, argument = option.rpartition(".")
        if key not in self.arguments or argument in PARTS_OF_A_CLASS:
            return
        named = [text for place, text in texts_in(list(before)) if place == key]
        taken = self.arguments[key].get(re.sub(r"^levelfield\..*\.", "", named[-1])) if named else None
        if taken is not None and argument not in taken:
            raise UserError(no_such_argument(key, argument, taken))


def answered(words: Sequence[str]) -> bool:
    """Whether the stored options were enough: the help that `levelfield fit` was asked for is printed.

    Raises:
        UserError: a misspelt key, or a configuration file that is not there.
    """
    if "--" in words or learner_named(list(words)) is not None:
        return False
    words = [*files_found(words)]
    stored = read()
    if stored is None:
        return False
    if {"-h", "--help"} & set(words):
        print(stored.help, end="")
        return True
    stored.refuse(words)
    return False


def read() -> StoredOptions | None:
    """What is stored, if it follows from the code and the libraries that are here."""
    with suppress(OSError, ValueError, TypeError, ImportError):
        stored = StoredOptions(**json.loads(_file().read_text(encoding="utf-8")))
        return stored if stored.follows_from == _here() else None
    return None


def store(help: str, options: list[str], linked: list[str], arguments: dict[str, dict[str, list[str]]]) -> None:
    """Store what a parser takes; where the folder cannot be written, the next help is made anew.

    The arguments are those of `StoredOptions`.
    """
    with suppress(OSError, UserError, ImportError):
        _file().parent.mkdir(parents=True, exist_ok=True)
        write_json(_file(), asdict(StoredOptions(_here(), help, options, linked, arguments)))


def _file() -> Path:
    return cache_root() / "fit_options.json"


def _here() -> str:
    """A digest of all that signatures and their texts may follow from."""
    digest = sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(f"{path}\n".encode() + path.read_bytes())
    for library in ("jsonargparse", "lightning", "torch"):
        spec = find_spec(library)
        digest.update(f"{library} {version(library)} {spec.origin if spec else None}\n".encode())
    return digest.hexdigest()


def _outer(option: str) -> list[str]:
    """`--model` and `--model.loss` of `--model.loss.margin`."""
    return [option[: dot.start()] for dot in re.finditer(r"\.", option)]


def _first_leaf(key: str, value: Any) -> str:
    while isinstance(value, dict) and value:
        name, value = next(iter(value.items()))
        key = f"{key}.{name}"
    return key
