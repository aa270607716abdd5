"""The small YAML file that defines a study: found by its path or its name, read, and resolved."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from levelfield.errors import UserError, nearest
from levelfield.metrics.table import METRICS, named
from levelfield.runtime.shipped import find_configuration, shipped_files
from levelfield.study.definition.configuration import (
    Config,
    merge,
    read_extended,
    read_yaml,
    set_dotted,
    stack,
    whole_number,
)
from levelfield.study.definition.references import read_references
from levelfield.study.definition.search_settings import SearchSettings, read_spaces, search_settings, second_searches
from levelfield.study.definition.spec import (
    BASELINE,
    COUNTS,
    ONE_PCA,
    SECTIONS,
    SMALLEST,
    STUDY,
    StudySpec,
    is_baseline,
)
from levelfield.study.definition.sweep import NAME, sweep_methods, trained_as, without_value
from levelfield.study.search.space import read_space

KEYS = (
    *("name", "base", "overrides", "methods", "sweep", "search", "spaces", "second_searches", "references", "metrics"),
    *COUNTS,
)
# The study sets these for each job.
OF_STUDIES = ("queries", "partition")  # the kinds of metrics that a study may score
PER_JOB = ("data.fold", "data.num_folds", "seed_everything")

# Settings of a Trainer with which nothing is trained, validated or kept.
WITHOUT_CHECKPOINT = {
    "enable_checkpointing": (False,),
    "fast_dev_run": (True, *range(1, 100)),
    **dict.fromkeys(("max_epochs", "max_steps", "limit_train_batches", "limit_val_batches"), (0,)),
}


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
    asked = re.sub(r"^(\.{1,2}/|configs/|study/)+", "", name).removesuffix(".yaml") + ".yaml"
    raise UserError(f"no study file {name!r}{nearest(asked, names, cutoff=0.4)}")


def load_spec(
    path: Path, overrides: Mapping[str, Any] | None = None, added_methods: Mapping[str, Config] | None = None
) -> StudySpec:
    """Read a study file and resolve it.

    Args:
        path: The study file; the files it names are relative to it, or shipped ones. It may extend another's.
        overrides: Dotted keys and values for all methods (`data.dataset.table`) or the study itself (`runs`).
        added_methods: Further methods, laid over the same base; one without a `search:` is not searched.

    Raises:
        UserError: a missing file, an unknown key, a count that is not one, a space that is none.
    """
    content = read_extended(path)
    overrides = dict(overrides or {})
    for key in content:
        if key not in KEYS:
            raise UserError(f"{path}: unknown key {key!r}{nearest(key, KEYS)}")
    title = content.get("name", path.stem)
    if title is None or isinstance(title, list | dict):
        raise UserError(f"{path}: name must be text, not {title!r}")
    methods = content["methods"] = _methods(path, content.get("methods"))
    counts = {key: content.get(key, default) for key, default in COUNTS.items()}
    base = stack(content.get("base", []), path.parent, f"base of {path}")
    overrides_of_file = content.get("overrides") or {}
    for layer in overrides_of_file if isinstance(overrides_of_file, list) else [overrides_of_file]:
        base = merge(base, _mapping(layer, f"{path}: overrides"))
    metrics = content.get("metrics", base.pop("metrics", None))
    asked: dict[str, Config] = {"search": {}, "second_searches": {}}
    for key in list(overrides):
        check_override(key)
        if key in COUNTS:
            counts[key] = overrides.pop(key)
        elif key == "metrics":
            metrics = overrides.pop(key)
        elif (section := key.partition(".")[0]) in asked:
            asked[section][key.partition(".")[2]] = overrides.pop(key)
    for name in added_methods or {}:
        if name in methods:
            raise UserError(f"--add-method: the study has a method named {name!r} already; rename the class")
    layers = {
        **{name: stack(method, path.parent, f"method {name} of {path}") for name, method in methods.items()},
        **(added_methods or {}),
    }
    for name, layer in layers.items():
        if "metrics" in layer:
            raise UserError(f"method {name} of {path}: 'metrics' are the study's; name them there")
    how = _mapping(content.get("search") or {}, f"{path}: search")
    settings = search_settings(path, {**how, **asked["search"]}, asked["search"])
    shared = trained_as(path, layers)
    configs = {name: merge(base, layer) for name, layer in layers.items()}
    searches = {name: config.pop("search", None) for name, config in configs.items()}
    searched = [name for name in searches if name not in shared and not is_baseline(name)]
    given = read_spaces(path, content, {name: searches[name] for name in searched}, settings)
    given |= {name: given[other] for name, other in shared.items() if other in given}
    swept, configs = sweep_methods(path, content.get("sweep"), configs)
    if taken := {BASELINE, ONE_PCA} & set(configs):
        raise UserError(
            f"{path}: {taken.pop()!r} is the baseline's name; as a method {BASELINE!r} is several trunks, in a sweep "
            "of model.trunk"
        )
    _refuse_swept(path, swept, overrides, given)
    _refuse_searched(path, overrides, given)
    resolved = {name: _resolve(name, config, overrides) for name, config in configs.items()}
    spaces = {name: given[without_value(name)] for name in resolved if without_value(name) in given}
    shared = {
        name: name.replace(known, shared[known], 1) for name in resolved if (known := without_value(name)) in shared
    }
    again = content.get("second_searches") or []
    for name, second in second_searches(path, again, asked["second_searches"], list(resolved)):
        resolved[second] = resolved[name]
        if name in spaces:
            spaces[second] = spaces[name]
        if name in shared:
            shared[second] = second.replace(name, shared[name], 1)
    for name, trained in shared.items():
        if trained not in resolved:
            raise UserError(f"{path}: {name} is trained as {trained}, which the study has not")
    whole: dict[str, Any] = {key: whole_number(path, key, value, SMALLEST.get(key, 1)) for key, value in counts.items()}
    return StudySpec(
        name=str(title),
        **whole,
        methods=resolved,
        search=settings,
        spaces={name: spaces[name] for name in resolved if spaces.get(name)},
        metrics=further_metrics(path, metrics),
        trained_as=shared,
        sweep=swept,
        references=read_references(path, content.get("references")),
    ).with_own_code()


def check_override(key: str) -> None:
    """Refuse an option that is none of a study's.

    Raises:
        UserError: says which are.
    """
    if key == "name" or key in PER_JOB:
        raise UserError(f"--{key} cannot be overridden: a study sets it itself (--folds, --runs and --seed can)")
    if key in ("model.loss", "model.miner"):
        raise UserError(f"--{key} would give every method of the study the same one; use --add-method")
    section = key.split(".")[0]
    if key != "metrics" and section not in (*SECTIONS, "search", "second_searches", *COUNTS):
        raise UserError(f"unknown option --{key}{nearest(section, [*SECTIONS, 'metrics', *COUNTS])}")


def _methods(path: Path, asked: Any) -> Config:
    """The study's methods; one that is null, of those of the study that it extends, is left out.

    Raises:
        UserError: there are none, or one has a name that is not usable.
    """
    if not isinstance(asked, dict) or not asked:
        raise UserError(f"{path}: 'methods' must map method names to lists of configuration files")
    for name in asked:
        if not isinstance(name, str) or not re.fullmatch(f"(?![_.-]){NAME}", name):
            raise UserError(
                f"{path}: method name {name!r}: use letters, digits, '_', '-' and '.', between quotes if it is no text"
            )
    kept = {name: layers for name, layers in asked.items() if layers is not None}
    if not kept:
        raise UserError(f"{path}: 'methods' leaves out every method; keep one")
    return kept


def _mapping(asked: Any, place: str) -> Config:
    """What a section holds.

    Raises:
        UserError: it holds something else than settings.
    """
    if not isinstance(asked, dict):
        raise UserError(f"{place} must map settings to their values, not be {asked!r}")
    return asked


def _refuse_swept(path: Path, swept: str, overrides: Mapping[str, Any], spaces: Mapping[str, Config]) -> None:
    """Refuse what would give all values of a sweep the same one.

    Raises:
        UserError: an override or a space of the swept key.
    """
    for key in overrides:
        if swept and f"{key}.".startswith(f"{swept}."):
            raise UserError(f"--{key}: the study tries several values of it; change its 'sweep:'")
    for name, space in spaces.items():
        if swept in space:
            raise UserError(f"{path}: method {name} searches {swept}, which the study sweeps; give it another space")


def _refuse_searched(path: Path, overrides: Mapping[str, Any], spaces: Mapping[str, Config]) -> None:
    """Refuse a value for what a method searches, which would take the search's.

    Raises:
        UserError: names the method and the remedy.
    """
    for name, space in spaces.items():
        places = read_space(space, f"space of {name}")
        searched = {_short(each) for key, place in places.items() for each in place.keys(key)}
        for key in overrides:
            if _short(key) in searched:
                raise UserError(
                    f"--{key}: {name} searches it, so that no value given would stay; leave the option out, change "
                    f"the space in {path}, or search nothing: --search.trials 0"
                )


def _short(key: str) -> str:
    return key.replace(".init_args", "")


def further_metrics(path: Path, asked: Any) -> list[str]:
    """The names in a study's `metrics:`, one or a list of them.

    Raises:
        UserError: there is no such metric, or every study has it.
    """
    names = asked if isinstance(asked, list) else [] if asked is None else [asked]
    for name in names:
        row = named(str(name))
        if row is None or row[0].shown or row[0].kind not in OF_STUDIES or min(row[1], default=1) < 1:
            further = [metric.key for metric in METRICS if not metric.shown and metric.kind in OF_STUDIES]
            raise UserError(f"{path}: metrics: no metric {name!r}{nearest(str(name), further)}")
    return list(names)


def _resolve(name: str, config: Config, overrides: Mapping[str, Any]) -> Config:
    for key, value in overrides.items():
        config = set_dotted(config, key, value)
    config.pop("seed_everything", None)
    sections = {section: config.get(section) or {} for section in (*SECTIONS, *config)}
    config = {section: dict(_mapping(found, f"method {name!r}: {section}")) for section, found in sections.items()}
    config["trainer"]["devices"] = _devices(name, config["trainer"])
    for key, value in config["trainer"].items():
        if value in WITHOUT_CHECKPOINT.get(key, ()):
            raise UserError(f"method {name!r}: trainer.{key} is {value!r}, which leaves no best checkpoint to test")
    for key in PER_JOB:
        if key.startswith("data."):
            config["data"].pop(key.removeprefix("data."), None)
    return config


def _devices(name: str, trainer: Mapping[str, Any]) -> int:
    """Devices of each job, part of a study's identity: how a batch is shared changes the numbers."""
    devices = trainer.get("devices", 1)
    if isinstance(devices, bool) or not isinstance(devices, int) or devices < 1:
        raise UserError(
            f"method {name!r}: trainer.devices is {devices!r}; a study's job has the same number of devices "
            "wherever it runs: give a whole number of at least 1 (--executor.devices says which)"
        )
    if trainer.get("num_nodes", 1) != 1:
        raise UserError(f"method {name!r}: trainer.num_nodes is {trainer['num_nodes']!r}; a study's job has one node")
    return devices


def spec_from_yaml(path: Path) -> StudySpec:
    """Read the resolved `study.yaml` of a study folder."""
    content = read_yaml(path)
    try:
        spec = StudySpec(**{**content, "search": SearchSettings(**content.get("search", {}))})
        for method in spec.methods:
            spec.method_hash(method)
    except (TypeError, AttributeError):
        raise UserError(
            f"{path} is damaged, or not the study.yaml of a study folder; restore it, or choose another --output"
        ) from None
    return spec
