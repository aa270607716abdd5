"""The YAML file that defines a study: found by path or name, read with the files that it extends, and its options."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from levelfield.core.configuration import SECTIONS, Config, as_list, find_configuration, read_yaml, shipped_files
from levelfield.errors import UserError, nearest
from levelfield.study.spec import COUNTS, STUDY

KEYS = (
    *("name", "base", "overrides", "methods", "sweep", "search", "spaces", "second_searches", "references", "metrics"),
    *("selected_by", "blocks", "derived", "trunks"),
    *COUNTS,
)
# The study sets these for each job.
PER_JOB = ("data.fold", "data.num_folds", "seed_everything")
# Options of the study itself that have a section.
OWN_SECTIONS = ("search", "second_searches")


def find_study(name: str) -> Path:
    """The study file of that path, or of that name in configs/study, the working directory's or the shipped one.

    Raises:
        UserError: there is none, with the nearest name.
    """
    if (file := find_configuration(name, "study")) is not None:
        return file
    if (Path(name) / STUDY).is_file():
        raise UserError(f"{name} is the folder of a study; go on with it: levelfield study resume {name}")
    names = sorted(file.removeprefix("study/") for file in shipped_files("study"))
    searched = re.sub(r"^(\.{1,2}/|configs/|study/)+", "", name).removesuffix(".yaml") + ".yaml"
    raise UserError(f"no study file {name!r}{nearest(searched, names, cutoff=0.4)}")


def read_study_file(path: Path) -> Config:
    """The keys of a study file, laid over those of the file that it extends.

    Raises:
        UserError: the file, or one that it extends, is missing or has an unknown key.
    """
    return mapping(_read_extended(path), str(path), KEYS)


def _read_extended(path: Path, extended_by: tuple[Path, ...] = ()) -> Config:
    """A study file laid over the one that it `extends`, whose files stay relative to that one's folder.

    `base+` appends to the other's base. Methods and overrides are further layers over its own; `overrides: {}` drops
    its own. `spaces` and `search` are laid over it key by key. Any other key replaces.
    """
    content = read_yaml(path)
    name = content.pop("extends", None)
    if name is None:
        return content
    file = find_configuration(str(name), "study", path.parent)
    if file is None:
        raise UserError(f"{path.parent / str(name)} (extends of {path}) does not exist; correct the path")
    if file.resolve() in (*extended_by, path.resolve()):
        raise UserError(f"{path}: extends {name}, which extends this file again; leave one of them out")
    below = _read_extended(file, (*extended_by, path.resolve()))
    for part in ("methods", "spaces"):
        if isinstance(below.get(part), dict):
            below[part] = {key: _with_whole_paths(layers, file.parent) for key, layers in below[part].items()}
    if "base" in below:
        below["base"] = _with_whole_paths(below["base"], file.parent)
    for key, value in content.items():
        if key == "base+":
            key, value = "base", [*as_list(below.get("base", [])), *as_list(value)]
        elif key == "overrides":  # a layer each: what one appends (`key+`) is appended where they meet the base
            value = [*as_list(below.get(key) or []), value] if value else []
        elif key == "methods" and isinstance(value, dict):
            value = _layered(below.get(key) or {}, value)
        elif key in ("spaces", "search") and isinstance(value, dict):
            value = {**(below.get(key) or {}), **value}
        below[key] = value
    if isinstance(below.get("methods"), dict) and isinstance(below.get("spaces"), dict):
        below["spaces"] = {
            key: space for key, space in below["spaces"].items() if below["methods"].get(key, 0) is not None
        }
    return below


def _layered(below: Config, methods: Config) -> Config:
    """Methods of a file over those of the file that it extends: a method of both has the layers of both."""
    found = dict(below)
    for name, layers in methods.items():
        again = layers is not None and below.get(name) is not None
        found[name] = [*as_list(below[name]), *as_list(layers)] if again else layers
    return found


def _with_whole_paths(layers: Any, folder: Path) -> Any:
    """Layers whose files are found from any folder."""
    if isinstance(layers, list):
        return [_with_whole_paths(layer, folder) for layer in layers]
    file = find_configuration(layers, "study", folder) if isinstance(layers, str) else None
    return layers if file is None else str(file.resolve())


def sort_options(options: Mapping[str, Any]) -> tuple[Config, dict[str, Config], Config]:
    """Dotted options by what they set: the study's own keys, its `search` and `second_searches`, and all methods.

    Raises:
        UserError: an option that no study has.
    """
    own: Config = {}
    sections: dict[str, Config] = {section: {} for section in OWN_SECTIONS}
    of_methods: Config = {}
    for key, value in options.items():
        section, _, rest = key.partition(".")
        if key == "name" or key in PER_JOB:
            raise UserError(f"--{key} cannot be overridden: a study sets it itself (--folds, --runs and --seed can)")
        if key in ("model.loss", "model.miner"):
            raise UserError(f"--{key} would give every method of the study the same one; use --add-method")
        if key in (*COUNTS, "metrics", "selected_by"):
            own[key] = value
        elif section in sections:
            sections[section][rest] = value
        elif section in SECTIONS:
            of_methods[key] = value
        else:
            raise UserError(f"unknown option --{key}{nearest(section, [*SECTIONS, 'metrics', 'selected_by', *COUNTS])}")
    return own, sections, of_methods


def mapping(content: Any, place: str, known: Collection[str] | None = None) -> Config:
    """`content` if it is a mapping of known keys.

    Raises:
        UserError: names the place and the key.
    """
    if not isinstance(content, dict):
        raise UserError(f"{place} must map names to their settings, not be {content!r}")
    for key in content if known is not None else ():
        if key not in (known or ()):
            raise UserError(f"{place}: unknown key {key!r}{nearest(key, list(known or ()))}")
    return content


def whole_number(place: str, value: Any, smallest: int) -> int:
    """`value` if it is a whole number of at least `smallest`.

    Raises:
        UserError: names the place.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < smallest:
        raise UserError(f"{place} must be a whole number of at least {smallest}, not {value!r}")
    return value
