"""What the words of a command, and the files that they name, say of a training; needs no torch and no parser."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import Namespace

from levelfield.errors import UserError
from levelfield.runtime.shipped import find_configuration, nearest_configuration
from levelfield.runtime.yaml_once import refuse_repeated_keys

LEARNER = "model.learner"  # where a configuration names a learner of one's own


def files_found(words: Iterable[str]) -> Iterator[str]:
    """The words of a command with each configuration file where it lies: here, or among the shipped ones.

    Raises:
        UserError: there is no such file, with the nearest name; or it has a key twice.
    """
    option = ""
    for word in words:
        key, equals, value = word.partition("=") if word.startswith("--config=") else (option, "", word)
        named = key in ("--config", "-c") and value != "-" and not re.search(r":\s|^\s*{", value)  # else YAML itself
        if named and not Path(value).exists():
            file = find_configuration(value)
            if file is None:
                raise UserError(f"--config: no file '{value}'{nearest_configuration(value)}")
            word, value = f"{key}={file}" if equals else str(file), str(file)
        if named:
            refuse_repeated_keys(Path(value))
        yield word
        option = word


def learner_named(given: Any) -> str | None:
    """The learner's class in words, files or a configuration, of which the last counts."""
    return dict(texts_in(given)).get(LEARNER)


def texts_in(given: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Key and value of each text in words, the files that they name, or a configuration."""
    if isinstance(given, Namespace):
        given = given.as_dict()
    if isinstance(given, dict):
        for name, value in given.items():
            yield from texts_in(value, key if name in ("class_path", "init_args") else f"{key}.{name}".strip("."))
    elif isinstance(given, list | tuple):
        words = list(given)
        while words:
            word = words.pop(0)
            name, equals, value = word.partition("=") if isinstance(word, str) else ("", "", "")
            is_file = name in ("--config", "-c")
            if not is_file and not name.startswith("--"):
                yield from texts_in(word, key)
                continue
            is_flag = not words or str(words[0]).startswith("--")  # an option without a value: --resume
            text = value if equals else "" if is_flag else words.pop(0)
            try:
                file = find_configuration(text) if is_file else None  # else YAML itself
                content = yaml.safe_load(file.read_text(encoding="utf-8") if file else str(text))
            except (OSError, ValueError, yaml.YAMLError):  # the parser says what is wrong with a file
                content = None if is_file else text
            yield from texts_in(content, "" if is_file else name.removeprefix("--").rstrip("+"))
    elif isinstance(given, str):
        yield key, given


def set_aside(content: dict[str, Any]) -> dict[str, Any]:
    """A configuration without what is a study's: what it searches of a method, and a protocol's `metrics:`."""
    return {key: value for key, value in content.items() if key not in ("search", "metrics")}
