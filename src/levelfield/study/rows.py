"""Study files: find one, read it with the files that it extends, resolve it into rows with their configurations."""

import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from levelfield.core.configuration import (
    SECTIONS,
    Config,
    as_list,
    find_configuration,
    init_args,
    read_yaml,
    set_all,
    shipped_files,
    stack,
)
from levelfield.core.errors import UserError, naming, nearest
from levelfield.core.paths import find_own_modules
from levelfield.metrics.definitions import SELECTED_BY
from levelfield.study.methods import added_methods, read_method
from levelfield.study.search_space import read_space, values_of
from levelfield.study.spec import (
    ALPHA,
    BASELINE,
    COUNTS,
    HALVED_BY,
    NAME,
    OF,
    ONE_PCA,
    TO,
    VALIDATED,
    SearchSettings,
    StudySpec,
    is_baseline,
    value_of,
    whole_number,
)
from levelfield.study.untrained import ONE

# Keys of a study file with their defaults, and those that are fields of a `StudySpec` as they are.
DEFAULTS: Config = {
    **dict.fromkeys(("name", "base", "overrides", "methods", "sweep", "search", "spaces", "references", "metrics")),
    **dict.fromkeys(("derived", "trunks", "blocks", "compare")),
    **{**COUNTS, "searches": 1, "selected_by": SELECTED_BY},
}
FIELDS = (*COUNTS, "blocks", "selected_by", "compare")
# Options of the study itself.
OWN = (*COUNTS, "searches", "metrics", "selected_by", "compare")
# The study sets these for each job.
PER_JOB = ("data.fold", "data.num_folds", "seed_everything")
# Settings of a Trainer that would leave nothing trained, validated or kept.
WITHOUT_CHECKPOINT = {
    "enable_checkpointing": (False,),
    "fast_dev_run": (True, *range(1, 100)),
    **dict.fromkeys(("max_epochs", "limit_train_batches", "limit_val_batches"), (0,)),
}
Values = list[tuple[str | None, Config]]  # name of a value, or of a combination of values, and its settings


def find_study(name: str) -> Path:
    """The study file with this path, or with this name in configs/study of the working directory or the package.

    Raises:
        UserError: no such study file; the message names the nearest one or lists all.
    """
    if (file := find_configuration(name, "study")) is not None:
        return file
    names = [file.removeprefix("study/").removesuffix(".yaml") for file in sorted(shipped_files("study"))]
    searched = re.sub(r"^(\.{1,2}/|configs/|study/)+", "", name).removesuffix(".yaml")
    raise UserError(f"no study file {name!r}{nearest(searched, names, cutoff=0.6)}")


def load_spec(
    path: Path, options: Mapping[str, Any] | None = None, added: Mapping[str, Config] | None = None
) -> StudySpec:
    """Read a study file and resolve it.

    Args:
        options: Dotted keys and values for all methods (`data.dataset.table`) or the study itself (`runs`).
        added: More methods over the same base; one without a `search:` is not searched.

    Raises:
        UserError: a missing file, an unknown key, a wrong value or space.
    """
    own, of_methods = _sort(options or {})
    of_search = own.pop("search")
    content = {**DEFAULTS, "name": path.stem, **_read(path), **own}
    with naming(path):
        if content["name"] is None or isinstance(content["name"], list | dict):
            raise UserError(f"name must be text, not {content['name']!r}")
        base = stack([*as_list(content["base"]), *as_list(content["overrides"])], path.parent, "overrides or base")
        of_base = base.pop("metrics", None)
        search = _search(content["search"], of_search)
        sweep, values = _read_sweep(content["sweep"])
        configs = _configs(content, added or {}, base, path.parent)
        methods, spaces = dict[str, Config](), dict[str, Config]()
        for name, config in configs.items():
            space, own_sweep = config.pop("search", None) or {}, config.pop("sweep", None)
            if not search.trials or is_baseline(name):
                space = {}
            with naming(f"method {name}"):
                for value, settings in values if own_sweep is None else _read_sweep(own_sweep, sweep)[1]:
                    row = name if value is None else f"{name}[{value}]"
                    _refuse_without_effect(row, of_methods, [] if value is None else sweep, space)
                    methods[row] = _resolve(set_all(config, {**settings, **of_methods}))
                    spaces |= {row: space} if space else {}
        if content["references"] and any(map(is_baseline, methods)):
            raise UserError("references have no effect next to several trunks; remove them")
        if BASELINE in methods:
            raise UserError(f"{BASELINE!r} is the untrained row: rename the method, or sweep model.trunk")
        _search_again(content["searches"], methods, spaces)
        derived = _derive(content["derived"], methods)
        spec = StudySpec(
            name=str(content["name"]),
            methods=methods,
            search=search,
            spaces=spaces,
            metrics=as_list(of_base if content["metrics"] is None else content["metrics"]),
            sweep=sweep,
            derived=derived,
            trunks=_trunks(content["trunks"], base, of_methods, path.parent),
            references=list(dict.fromkeys([*map(str, as_list(content["references"])), ONE])),
            modules=_modules(methods),
            **{key: content[key] for key in FIELDS},
        )
        alike: dict[str | None, str] = {}
        for row in methods:
            if spec.halves[row] != spec.halves[other := alike.setdefault(value_of(row), row)]:
                keys = ", data.".join(HALVED_BY)
                raise UserError(
                    f"{other} and {row} would be tested on different samples: set data.{keys} for all methods, in the "
                    "base or a sweep"
                )
    return spec


def with_options(spec: StudySpec, options: Mapping[str, Any]) -> StudySpec:
    """A begun study with dotted options; `check_same` later checks whether it is still the same study.

    Raises:
        UserError: an unknown key or a wrong value.
    """
    if not options:
        return spec
    own, of_methods = _sort(options)
    if "searches" in own:
        raise UserError("--searches: a study cannot change its searches after it began; choose another --output")
    spec = spec.with_configs(lambda config: set_all(config, of_methods))
    own["search"] = _search(asdict(spec.search), own["search"])
    return replace(spec, modules=_modules(spec.methods), **own)


# Files and options.


def _read(path: Path, extended_by: tuple[Path, ...] = ()) -> Config:
    """A study file merged over the one that it `extends`; paths stay relative to the file that has them.

    `base+` appends to the base. Methods and overrides are further layers; `overrides: {}` drops the earlier ones.
    `spaces` and `search` merge key by key. Any other key replaces.
    """
    content = read_yaml(path)
    if isinstance(listed := content.get("methods"), list):
        content["methods"] = dict(added_methods([*map(str, listed)], f"methods of {path}:", path.parent))
    name = content.pop("extends", None)
    if name is None:
        return _mapping(content, str(path), DEFAULTS)
    file = find_configuration(str(name), "study", path.parent)
    if file is None:
        raise UserError(f"{path.parent / str(name)} (extends of {path}) does not exist; correct the path")
    if file.resolve() in (*extended_by, path.resolve()):
        raise UserError(f"{path}: extends {name}, which extends this file again; leave one of them out")
    below = _read(file, (*extended_by, path.resolve()))
    for part in ("methods", "spaces"):
        if isinstance(below.get(part), dict):
            below[part] = {key: _with_whole_paths(layers, file.parent) for key, layers in below[part].items()}
    below["base"] = _with_whole_paths(as_list(below.get("base")), file.parent)
    if "base+" in content:
        content["base"] = [*below["base"], *as_list(content.pop("base+"))]
    if content.get("overrides"):  # one layer each, so that `key+` appends when they merge over the base
        content["overrides"] = [*as_list(below.get("overrides")), content["overrides"]]
    if isinstance(content.get("methods"), dict):  # a method in both files has the layers of both
        old = below.get("methods") or {}
        content["methods"] = {
            name: None if layers is None else [*as_list(old.get(name)), *as_list(layers)]
            for name, layers in content["methods"].items()
        }
    for part in ("methods", "spaces", "search"):
        if isinstance(content.get(part), dict):
            content[part] = (below.get(part) or {}) | content[part]
    return _mapping(below | content, str(path), DEFAULTS)


def _with_whole_paths(layers: Any, folder: Path) -> Any:
    if isinstance(layers, list):
        return [_with_whole_paths(layer, folder) for layer in layers]
    file = find_configuration(layers, "study", folder) if isinstance(layers, str) else None
    return layers if file is None else str(file.resolve())


def _sort(options: Mapping[str, Any]) -> tuple[Config, Config]:
    """Sort dotted options: those of the study, with its `search`, and settings of all methods."""
    own, of_methods = dict[str, Any](search={}), dict[str, Any]()
    for key, value in options.items():
        section, _, rest = key.partition(".")
        if key == "name" or key in PER_JOB:
            raise UserError(f"--{key}: a study sets it for each job; leave it out, or give --folds, --runs or --seed")
        if key in ("model.loss", "model.miner"):
            raise UserError(f"--{key} would be the same for every method; to add a method, give --add-method")
        if key in OWN:
            own[key] = as_list(value) if key == "metrics" else value
        elif section == "search":
            own[section][rest] = value
        elif section in SECTIONS:
            of_methods[key] = value
        else:
            raise UserError(f"unknown option --{key}{nearest(section, [*SECTIONS, *OWN])}")
    return own, of_methods


def _mapping(content: Any, place: str, known: Collection[str] | None = None) -> Config:
    """`content` if it is a mapping of known keys."""
    if not isinstance(content, dict):
        raise UserError(f"{place} must be a mapping (name: settings), not {content!r}")
    if known is not None and (unknown := [key for key in content if key not in known]):
        raise UserError(f"{place}: unknown key {unknown[0]!r}{nearest(unknown[0], known)}")
    return content


def _search(content: Any, options: Config) -> SearchSettings:
    """The `search:` section with its options; without trials its other keys have no effect."""
    content = _mapping(content or {}, "search") | options
    search = SearchSettings(**_mapping(content, "search", SearchSettings.__dataclass_fields__))
    if not search.trials and (useless := [key for key in options if key != "trials"]):
        raise UserError(f"--search.{useless[0]} has no effect without a search; give --search.trials too")
    return search if search.trials else SearchSettings()


# Rows.


def _configs(content: Config, added: Mapping[str, Config], base: Config, folder: Path) -> dict[str, Config]:
    """Method to its layers over the base, its space as `search`; null drops a method of the extended file."""
    methods = _mapping(content["methods"], "methods")
    layers = {name: given for name, given in methods.items() if given is not None}
    spaces = _mapping(content["spaces"] or {}, "spaces", {*methods, *added})
    if not layers:
        raise UserError("'methods' is empty; give at least one")
    if again := {*layers} & {*added}:
        raise UserError(f"--add-method: the study already has a method named {min(again)!r}; rename the class or file")
    found = {}
    for name, given in {**layers, **added}.items():
        _check_name(name)
        place = f"method {name}"
        parts = [read_method(each, place, folder)[1] if isinstance(each, str) else each for each in as_list(given)]
        found[name] = stack(parts, folder, place, base)
        if name in spaces:
            found[name]["search"] = stack(spaces[name], folder, f"spaces: {name}")
        if "metrics" in found[name]:
            raise UserError(f"{place}: 'metrics' is a key of the study; set it there")
    return found


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not re.fullmatch(f"(?![_.-]){NAME}", name) or name == ONE_PCA:
        raise UserError(f"method name {name!r}: use letters, digits, '_', '-' and '.'; quote a number")


def _refuse_without_effect(row: str, options: Config, sweep: Sequence[str], content: Config) -> None:
    """Reject an option for a setting that the study sweeps or searches: it would have no effect."""
    space = read_space(content, "search")
    searched = {each.replace(".init_args", "") for key, axis in space.items() for each in axis.keys(key)}
    for key in sweep:
        if key in space:
            raise UserError(f"{row} searches {key}, which the study sweeps; leave one of them out")
    for key in options:
        if any(f"{key}.".startswith(f"{each}.") for each in sweep):
            raise UserError(f"--{key} has no effect: the study sweeps it; change 'sweep:' in the study file")
        if key.replace(".init_args", "") in searched:
            raise UserError(
                f"--{key}: {row} searches this setting, so the option has no effect; leave it out, change the space, "
                "or turn the search off: --search.trials 0"
            )


def _read_sweep(given: Any, study: Sequence[str] | None = None) -> tuple[list[str], Values]:
    """The swept keys, and each combination of their values: name and settings.

    Args:
        study: The keys of the study, if `given` is a method's own sweep of the same keys.
    """
    keys: dict[str, list[tuple[Any, Config]]] = {}
    for key, values in _mapping(given or {}, "sweep").items():
        with naming(f"sweep of {key}"):
            keys[str(key)] = values_of(str(key), values)
            for value, _ in keys[str(key)]:
                if not re.fullmatch(NAME, str(value)):
                    raise UserError(f"{value!r} does not fit into a row's name; name it: {{name: {{{key}: ...}}}}")
    if keys and study is not None and list(keys) != list(study):
        raise UserError(f"its sweep must have the keys of the study's ({', '.join(study)}), not {', '.join(keys)}")
    together: Values = []
    for each in itertools.product(*keys.values()):  # without keys one, which has no name
        settings = {key: value for _, of_value in each for key, value in of_value.items()}
        together.append((",".join(str(value) for value, _ in each) or None, settings))
    return list(keys), together


def _resolve(config: Config) -> Config:
    """The full configuration of a row, checked without importing classes."""
    _mapping(config, "its settings", (*SECTIONS, "seed_everything"))
    config = {key: dict(_mapping(config.get(key) or {}, key)) for key in SECTIONS}
    trainer = config["trainer"]
    if "devices" in trainer:  # the number of devices changes results
        whole_number("trainer.devices (a number of devices)", trainer["devices"], 1)
    if trainer.get("num_nodes", 1) != 1:
        raise UserError(f"trainer.num_nodes is {trainer['num_nodes']!r}; a job has one node; leave it out")
    for key, value in trainer.items():
        if value in WITHOUT_CHECKPOINT.get(key, ()):
            raise UserError(f"trainer.{key} is {value!r}, which leaves nothing to test; leave it out")
    if any("selected_by" in init_args(callback) for callback in as_list(trainer.get("callbacks"))):
        raise UserError("trainer.callbacks: 'selected_by' is a key of the study; set it there")
    for key in PER_JOB:
        config["data"].pop(key.removeprefix("data."), None)
    return config


def _search_again(given: Any, methods: dict[str, Config], spaces: dict[str, Config]) -> None:
    """Add a row for every further search: `2` for all that are searched, or `{arcface: 2}`."""
    numbers = given if isinstance(given, dict) else dict.fromkeys(spaces or methods, given)
    _mapping(numbers, "searches", methods)
    for row in [each for each in methods if each in numbers]:
        whole_number(f"searches of {row}", numbers[row], 1)
        for again in range(2, numbers[row] + 1):
            if row not in spaces:
                raise UserError(f"searches {again}: {row} is not searched; give --search.trials and a search space")
            methods[f"{row}@{again}"], spaces[f"{row}@{again}"] = methods[row], spaces[row]


def _derive(given: Any, methods: dict[str, Config]) -> dict[str, Config]:
    """Add the derived rows, each perhaps of an earlier one, and return their definitions."""
    for row, made in _mapping(given or {}, "derived").items():
        _check_name(row)
        with naming(f"derived.{row}"):
            if row in methods or is_baseline(row):
                raise UserError("another row has this name; choose another")
            of = _mapping(made, "its definition", (OF, ALPHA, TO)).get(OF)
            if of not in methods:
                raise UserError(f"of: no method {of!r}{nearest(of, methods)}")
            if (ALPHA in made) == (TO in made):
                raise UserError(f"give one of {ALPHA} (a number, or validated) and {TO} (a size)")
            alpha = made.get(ALPHA, VALIDATED)
            if alpha != VALIDATED and not (isinstance(alpha, int | float) and 0 <= alpha <= 1):
                raise UserError(f"{ALPHA} must be a number from 0 to 1, or {VALIDATED}, not {alpha!r}")
            whole_number(TO, made.get(TO, 1), 1)
        config, left_out = methods[of], ("loss", "miner", "regularizer")
        model = {key: value for key, value in config["model"].items() if key not in left_out}
        model["loss"] = "levelfield.losses.ContrastiveLoss"  # a learner needs one; it is not trained
        if TO in made:
            model |= {"embedder": "levelfield.models.LinearEmbedder", "embedding_size": made[TO]}
        trainer = {key: value for key, value in config["trainer"].items() if key in ("accelerator", "precision")}
        methods[row] = {**config, "model": model, "trainer": {**trainer, "limit_predict_batches": 0}}
    return dict(given or {})


def _trunks(given: Any, base: Config, options: Config, folder: Path) -> dict[str, Config]:
    """Name and configuration of each further trunk: it is stacked on the base as a method is."""
    of_data = {key: value for key, value in options.items() if not key.startswith("model.")}
    found = {}
    for name, layers in _mapping(given or {}, "trunks").items():
        with naming(f"trunks: {name}"):
            config = set_all(stack(layers, folder, "it", base), of_data)
            found[str(name)] = _resolve({key: part for key, part in config.items() if key != "search"})
    return found


def _modules(methods: Mapping[str, Config]) -> list[str]:
    """The rows whose learner is not a `MetricLearner`. If no row names a learner, nothing is imported."""
    learners = {row: model for row, config in methods.items() if (model := config.get("model") or {}).get("learner")}
    if not learners:
        return []
    from levelfield.training.learner import MetricLearner
    from levelfield.training.plain_module import user_class

    find_own_modules(learners)
    kinds = {row: user_class("model", model) for row, model in learners.items()}
    return [row for row, kind in kinds.items() if not issubclass(kind, MetricLearner)]
