"""The YAML file that defines a study: find it, read it with the files that it extends, sort its options."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from levelfield.core.configuration import SECTIONS, Config, as_list, find_configuration, read_yaml, shipped_files
from levelfield.core.errors import UserError, nearest
from levelfield.core.shape import count
from levelfield.study.methods import read_method
from levelfield.study.spec import COUNTS, STUDY

KEYS = (
    *("name", "base", "overrides", "methods", "sweep", "search", "spaces", "searches", "references", "metrics"),
    *("selected_by", "blocks", "derived", "trunks", "compare"),
    *COUNTS,
)
# The study sets these for each job.
PER_JOB = ("data.fold", "data.num_folds", "seed_everything")
# Options of the study itself.
OWN = (*COUNTS, "searches", "metrics", "selected_by", "compare")


def find_study(name: str) -> Path:
    """The study file with this path, or with this name in configs/study of the working directory or the package.

    Raises:
        UserError: no such study file; the message names the nearest one or lists all.
    """
    if (file := find_configuration(name, "study")) is not None:
        return file
    if (Path(name) / STUDY).is_file():
        raise UserError(f"{name} is the folder of a study; continue it: levelfield study resume {name}")
    names = [file.removeprefix("study/").removesuffix(".yaml") for file in sorted(shipped_files("study"))]
    searched = re.sub(r"^(\.{1,2}/|configs/|study/)+", "", name).removesuffix(".yaml")
    raise UserError(f"no study file {name!r}{nearest(searched, names, cutoff=0.6)}")


def read_study_file(path: Path, extended_by: tuple[Path, ...] = ()) -> Config:
    """A study file merged over the one that it `extends`; paths stay relative to the file that has them.

    `base+` appends to the base. Methods and overrides are further layers; `overrides: {}` drops the earlier ones.
    `spaces` and `search` merge key by key. Any other key replaces.

    Raises:
        UserError: the file, or one that it extends, is missing or has an unknown key.
    """
    content = read_yaml(path)
    if isinstance(listed := content.get("methods"), list):
        content["methods"] = {read_method(str(each), f"methods of {path}", path.parent)[0]: each for each in listed}
    name = content.pop("extends", None)
    if name is None:
        return mapping(content, str(path), KEYS)
    file = find_configuration(str(name), "study", path.parent)
    if file is None:
        raise UserError(f"{path.parent / str(name)} (extends of {path}) does not exist; correct the path")
    if file.resolve() in (*extended_by, path.resolve()):
        raise UserError(f"{path}: extends {name}, which extends this file again; leave one of them out")
    below = read_study_file(file, (*extended_by, path.resolve()))
    for part in ("methods", "spaces"):
        if isinstance(below.get(part), dict):
            below[part] = {key: _with_whole_paths(layers, file.parent) for key, layers in below[part].items()}
    if "base" in below:
        below["base"] = _with_whole_paths(below["base"], file.parent)
    for key, value in content.items():
        if key == "base+":
            key, value = "base", [*as_list(below.get("base", [])), *as_list(value)]
        elif key == "overrides":  # one layer each, so that `key+` appends when they merge over the base
            value = [*as_list(below.get(key) or []), value] if value else []
        elif key == "methods" and isinstance(value, dict):  # a method in both files has the layers of both
            old = below.get(key) or {}
            value = old | {
                name: layers if layers is None or old.get(name) is None else [*as_list(old[name]), *as_list(layers)]
                for name, layers in value.items()
            }
        elif key in ("spaces", "search") and isinstance(value, dict):
            value = {**(below.get(key) or {}), **value}
        below[key] = value
    return mapping(below, str(path), KEYS)


def _with_whole_paths(layers: Any, folder: Path) -> Any:
    """Layers with absolute paths."""
    if isinstance(layers, list):
        return [_with_whole_paths(layer, folder) for layer in layers]
    file = find_configuration(layers, "study", folder) if isinstance(layers, str) else None
    return layers if file is None else str(file.resolve())


def sort_options(options: Mapping[str, Any]) -> tuple[Config, Config, Config]:
    """Sort dotted options: keys of the study, keys of its `search`, settings of all methods.

    Raises:
        UserError: an option that a study does not have.
    """
    own, of_search, of_methods = dict[str, Any](), dict[str, Any](), dict[str, Any]()
    for key, value in options.items():
        section, _, rest = key.partition(".")
        if key == "name" or key in PER_JOB:
            raise UserError(f"--{key}: a study sets it for each job; leave it out, or give --folds, --runs or --seed")
        if key in ("model.loss", "model.miner"):
            raise UserError(f"--{key} would be the same for every method; to add a method, give --add-method")
        if key in OWN:
            own[key] = value
        elif section == "search":
            of_search[rest] = value
        elif section in SECTIONS:
            of_methods[key] = value
        else:
            raise UserError(f"unknown option --{key}{nearest(section, [*SECTIONS, *OWN])}")
    return own, of_search, of_methods


def mapping(content: Any, place: str, known: Collection[str] | None = None) -> Config:
    """`content` if it is a mapping of known keys.

    Raises:
        UserError: names the file and the key.
    """
    if not isinstance(content, dict):
        raise UserError(f"{place} must be a mapping (name: settings), not {content!r}")
    if known is not None and (unknown := [key for key in content if key not in known]):
        raise UserError(f"{place}: unknown key {unknown[0]!r}{nearest(unknown[0], known)}")
    return content


def whole_number(place: str, value: Any, smallest: int) -> int:
    """`value` if it is a whole number of at least `smallest`.

    Raises:
        UserError: names the key.
    """
    if not count(value) or value < smallest:
        raise UserError(f"{place} must be a whole number of at least {smallest}, not {value!r}")
    return int(value)
