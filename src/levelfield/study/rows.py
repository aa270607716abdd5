"""The rows of a study: methods, values of a sweep and second searches, each with its full configuration."""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from levelfield.core.configuration import SECTIONS, Config, as_list, init_args, merge, set_dotted, stack
from levelfield.core.errors import UserError, nearest
from levelfield.core.paths import find_own_modules
from levelfield.metrics.definitions import METRICS, can_select, is_user_metric, named
from levelfield.study.methods import read_method
from levelfield.study.search_space import read_space
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
    first_search,
    is_baseline,
    value_of,
    without_value,
)
from levelfield.study.study_file import PER_JOB, mapping, read_study_file, sort_options, whole_number
from levelfield.study.suggest import SAMPLERS
from levelfield.study.untrained import FEATURES, LDA, ONE, TO_SIZE, WHITENING

# Settings of a Trainer that would leave nothing trained, validated or kept.
WITHOUT_CHECKPOINT = {
    "enable_checkpointing": (False,),
    "fast_dev_run": (True, *range(1, 100)),
    **dict.fromkeys(("max_epochs", "limit_train_batches", "limit_val_batches"), (0,)),
}
Values = list[tuple[str | None, Config]]  # name of a value, or of a combination of values, and its settings
Swept = tuple[list[str], Values]  # the keys of a sweep, and their values


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
    content = read_study_file(path)
    own, of_search, of_methods = sort_options(options or {})
    content |= own
    name = content.get("name", path.stem)
    if name is None or isinstance(name, list | dict):
        raise UserError(f"{path}: name must be text, not {name!r}")
    base = stack(content.get("base", []), path.parent, f"base of {path}")
    for layer in as_list(content.get("overrides") or {}):
        base = merge(base, mapping(layer, f"{path}: overrides"))
    content.setdefault("metrics", base.pop("metrics", None))
    layers = _layers(path, content.get("methods"), added or {})
    find_own_modules([base, layers])
    search = read_search(path, mapping(content.get("search") or {}, f"{path}: search"), of_search)
    sweep, values = read_sweep(path, content.get("sweep"))
    methods, spaces, derived = dict[str, Config](), dict[str, Config](), dict[str, Config]()
    for row, config, space in _rows(path, content, base, layers, search, (sweep, values), of_methods):
        methods[row] = config
        spaces |= {row: space} if space else {}
    for row, number in _second_searches(path, content.get("searches", 1), methods, spaces):
        methods[f"{row}@{number}"], spaces[f"{row}@{number}"] = methods[row], spaces[row]
    for row, config, made in _derived(path, content.get("derived"), methods):
        methods[row], derived[row] = config, made
    spec = StudySpec(
        name=str(name),
        methods=methods,
        search=search,
        spaces=spaces,
        sweep=sweep,
        blocks=None if (blocks := content.get("blocks")) is None else whole_number(f"{path}: blocks", blocks, 2),
        derived=derived,
        trunks=dict(_trunks(path, content.get("trunks"), base, of_methods)),
        references=_references(path, content.get("references"), any(map(is_baseline, methods))),
        modules=_modules(methods),
        **_given(f"{path}: ", {**COUNTS, **content}, methods),
    )
    alike: dict[str | None, str] = {}
    for row in methods:
        if spec.halves[row] != spec.halves[other := alike.setdefault(value_of(row), row)]:
            raise UserError(
                f"{path}: {other} and {row} would be tested on different samples: set data.{', data.'.join(HALVED_BY)} "
                "for all methods, in the base or a sweep"
            )
    return spec


def _modules(methods: Mapping[str, Config]) -> list[str]:
    """The rows whose learner is not a `MetricLearner`. If no row names a learner, nothing is imported."""
    learners = {row: model for row, config in methods.items() if (model := config.get("model") or {}).get("learner")}
    if not learners:
        return []
    from levelfield.training.learner import MetricLearner
    from levelfield.training.plain_module import user_class

    kinds = {row: user_class("model", model) for row, model in learners.items()}
    return [row for row, kind in kinds.items() if not issubclass(kind, MetricLearner)]


def with_options(spec: StudySpec, options: Mapping[str, Any]) -> StudySpec:
    """A begun study with dotted options; `check_same` later checks whether it is still the same study.

    Raises:
        UserError: an unknown key or a wrong value.
    """
    own, of_search, of_methods = sort_options(options)
    if "searches" in own:
        raise UserError("--searches: a study cannot change its searches after it began; choose another --output")
    spec = spec.with_configs(partial(_with_options, options=of_methods))
    search = read_search(Path("options"), asdict(spec.search), of_search)
    return replace(spec, modules=_modules(spec.methods), search=search, **_given("--", own, spec.methods))


def _with_options(config: Config, options: Config) -> Config:
    for key, value in options.items():
        config = set_dotted(config, key, value)
    return config


def _given(place: str, content: Config, rows: Iterable[str]) -> dict[str, Any]:
    """The counts, metrics, `selected_by` and `compare` that a study file or options have."""
    found: dict[str, Any] = {
        key: whole_number(f"{place}{key}", content[key], int(key != "seed")) for key in COUNTS if key in content
    }
    if "metrics" in content:
        found["metrics"] = read_metrics(f"{place}metrics", content["metrics"])
    if "selected_by" in content:
        found["selected_by"] = str(content["selected_by"])
        if not can_select(found["selected_by"]):
            names = [metric.key for metric in METRICS if metric.kind == "queries"]
            close = nearest(found["selected_by"], names)
            raise UserError(f"{place}selected_by: no validation score {found['selected_by']!r}{close}")
    if "compare" in content:
        found["compare"] = name = content["compare"]
        methods = [row for row in rows if not is_baseline(row) and first_search(row) == row]
        if name not in (None, *methods):
            raise UserError(f"{place}compare {name!r}{nearest(str(name), methods)}")
    return found


def _layers(path: Path, methods: Any, added: Mapping[str, Config]) -> dict[str, Config]:
    """Method to its layers over the base; null drops a method of the extended file."""
    kept: dict[str, Config] = {}
    for name, given in mapping(methods, f"{path}: methods").items():
        _check_name(path, name)
        if given is not None:
            place = f"method {name} of {path}"
            parts = [read_method(m, place, path.parent)[1] if isinstance(m, str) else m for m in as_list(given)]
            kept[name] = stack(parts, path.parent, place)
            if "metrics" in kept[name]:
                raise UserError(f"{place}: 'metrics' is a key of the study; set it there")
    if not kept:
        raise UserError(f"{path}: 'methods' is empty; give at least one")
    for name in added:
        if name in kept:
            raise UserError(f"--add-method: the study already has a method named {name!r}; rename the class or file")
    return {**kept, **added}


def _check_name(path: Path, name: Any) -> None:
    if not isinstance(name, str) or not re.fullmatch(f"(?![_.-]){NAME}", name) or name == ONE_PCA:
        raise UserError(f"{path}: method name {name!r}: use letters, digits, '_', '-' and '.'; quote a number")


def _rows(
    path: Path, content: Config, base: Config, layers: Config, search: SearchSettings, swept: Swept, options: Config
) -> Iterator[tuple[str, Config, Config]]:
    """All rows with their configurations and spaces: one per method, or one per method and value of the sweep."""
    known, (sweep, values) = {*content["methods"], *layers}, swept  # with the methods that an extending file drops
    spaces = mapping(content.get("spaces") or {}, f"{path}: spaces", known)
    for name, layer in layers.items():
        config = merge(base, layer)
        space = _space(path, name, spaces, config.pop("search", None), search)
        of_row: Values = values
        if "sweep" in config:
            own = config.pop("sweep")
            if not sweep:
                raise UserError(f"{path}: method {name}: its sweep needs a sweep in the study; add one there")
            of_row = read_sweep(path, own, sweep)[1]
        for value, settings in of_row:
            each = _with_options(_with_options(config, settings), options)
            row = name if value is None else f"{name}[{value}]"
            if row == BASELINE:
                raise UserError(f"{path}: {row!r} is the untrained row: rename the method, or sweep model.trunk")
            _refuse_without_effect(path, row, options, sweep if value is not None else [], space)
            yield row, _resolve(row, each), space


def _space(path: Path, name: str, spaces: Config, own: Any, search: SearchSettings) -> Config:
    """The search space of a method: from the study's `spaces:`, else from the method's own `search:`."""
    if not search.trials or is_baseline(name):
        return {}
    place = f"search of method {name} of {path}"
    if name in spaces:
        place = f"spaces of {path}: {name}"
        own = stack(spaces[name] or {}, path.parent, place)
    read_space(own or {}, place)
    return own or {}


def read_sweep(path: Path, given: Any, study: Sequence[str] | None = None) -> Swept:
    """The swept keys, and each combination of their values: name and settings.

    In a list, a value is its own name. In a mapping, it maps to its settings, which may set the key itself:
    `data.samples_per_class: {none: {data.sampler: ..., data.samples_per_class: 1}, 5: {}}`.

    Args:
        study: The keys of the study, if `given` is a method's own sweep of the same keys.

    Raises:
        UserError: a key without values, or a value that does not fit into a row's name.
    """
    if not given:
        return [], [(None, {})]
    keys: dict[str, Values] = {}
    for part in as_list(given):
        for key, values in mapping(part, f"{path}: sweep").items():
            if isinstance(values, list):
                pairs = [(value, None) for value in values]
            else:
                pairs = list(mapping(values, f"{path}: sweep of {key}").items())
            if not pairs:
                raise UserError(f"{path}: sweep of {key} must list its values: {{model.embedding_size: [64, 128]}}")
            for value, follows in pairs:
                if not re.fullmatch(NAME, str(value)) or not isinstance(follows, dict | None):
                    raise UserError(
                        f"{path}: sweep of {key}: {value!r} does not fit into a row's name; give it a name: "
                        f"{{name: {{{key}: ...}}}}"
                    )
            keys[str(key)] = [(str(value), {key: value, **(follows or {})}) for value, follows in pairs]
    if study is not None and list(keys) != list(study):
        raise UserError(
            f"{path}: a method's sweep must have the keys of the study's sweep, {', '.join(study)}, not "
            f"{', '.join(keys)}"
        )
    together: Values = []
    for each in itertools.product(*keys.values()):
        settings = {key: value for _, follows in each for key, value in follows.items()}
        together.append((",".join(str(value) for value, _ in each), settings))
    return list(keys), together


def _refuse_without_effect(path: Path, row: str, options: Config, sweep: Sequence[str], space: Config) -> None:
    """Reject an option for a setting that the study sweeps or searches: it would have no effect."""
    searched = {
        each.replace(".init_args", "") for key, place in read_space(space, row).items() for each in place.keys(key)
    }
    for key in sweep:
        if key in space:
            raise UserError(f"{path}: method {row} searches {key}, which the study sweeps; leave one of them out")
    for key in options:
        if any(f"{key}.".startswith(f"{each}.") for each in sweep):
            raise UserError(f"--{key} has no effect: the study sweeps it; change 'sweep:' in the study file")
        if key.replace(".init_args", "") in searched:
            raise UserError(
                f"--{key}: {without_value(row)} searches this setting, so the option has no effect; leave it out, "
                f"change the space in {path}, or turn the search off: --search.trials 0"
            )


def _resolve(row: str, config: Config) -> Config:
    """The full configuration of a row, checked without importing classes."""
    mapping(config, f"method {row!r}", (*SECTIONS, "seed_everything"))
    config = {key: dict(mapping(config.get(key) or {}, f"method {row!r}: {key}")) for key in SECTIONS}
    trainer = config["trainer"]
    if "devices" in trainer:  # the number of devices changes results
        whole_number(f"method {row!r}: trainer.devices (a number of devices)", trainer["devices"], 1)
    if trainer.get("num_nodes", 1) != 1:
        raise UserError(
            f"method {row!r}: trainer.num_nodes is {trainer['num_nodes']!r}; a job has one node; leave it out"
        )
    for key, value in trainer.items():
        if value in WITHOUT_CHECKPOINT.get(key, ()):
            raise UserError(f"method {row!r}: trainer.{key} is {value!r}, which leaves nothing to test; leave it out")
    if any("selected_by" in init_args(callback) for callback in as_list(trainer.get("callbacks"))):
        raise UserError(f"method {row!r}: trainer.callbacks: 'selected_by' is a key of the study; set it there")
    for key in PER_JOB:
        config["data"].pop(key.removeprefix("data."), None)
    return config


def read_search(path: Path, search: Config, options: Config) -> SearchSettings:
    """The `search:` section with its options; without trials its other keys have no effect."""
    known = SearchSettings.__dataclass_fields__
    settings = SearchSettings(**mapping({**search, **options}, f"{path}: search", known))
    for key, smallest in (("trials", 0), ("batch", 1), ("folds", 2)):
        if getattr(settings, key) is not None:
            whole_number(f"{path}: search.{key}", getattr(settings, key), smallest)
    if not isinstance(settings.random_folds, bool):
        raise UserError(f"{path}: search.random_folds must be true or false, not {settings.random_folds!r}")
    if settings.sampler not in SAMPLERS:
        raise UserError(f"{path}: search.sampler {settings.sampler!r}{nearest(str(settings.sampler), SAMPLERS)}")
    if not settings.trials and (useless := [key for key in options if key != "trials"]):
        raise UserError(f"--search.{useless[0]} has no effect without a search; give --search.trials too")
    return settings if settings.trials else SearchSettings()


def _second_searches(path: Path, given: Any, rows: Config, spaces: Config) -> Iterator[tuple[str, int]]:
    """(row, number from 2) of every further search, from `2` for all that are searched, or `{arcface: 2}`."""
    numbers = given if isinstance(given, dict) else dict.fromkeys(spaces or rows, given)
    mapping(numbers, f"{path}: searches", rows)
    for row in [each for each in rows if each in numbers]:
        number = whole_number(f"{path}: searches of {row}", numbers[row], 1)
        if number > 1 and row not in spaces:
            raise UserError(
                f"{path}: searches {number}: {row} is not searched; give --search.trials and a search space"
            )
        yield from ((row, again) for again in range(2, number + 1))


def _derived(path: Path, given: Any, rows: Config) -> Iterator[tuple[str, Config, Config]]:
    """Each derived row with its configuration and its definition; it may be derived from an earlier one."""
    for row, made in mapping(given or {}, f"{path}: derived").items():
        place = f"{path}: derived.{row}"
        mapping(made, place, (OF, ALPHA, TO))
        _check_name(path, row)
        if row in rows or is_baseline(row):
            raise UserError(f"{place}: another row has this name; choose another")
        if made.get(OF) not in rows:
            raise UserError(f"{place}: of: no method {made.get(OF)!r}{nearest(str(made.get(OF)), [*rows])}")
        if (ALPHA in made) == (TO in made):
            raise UserError(f"{place}: give one of {ALPHA} (a number, or validated) and {TO} (a size)")
        alpha = made.get(ALPHA, VALIDATED)
        if alpha != VALIDATED and not (isinstance(alpha, int | float) and 0 <= alpha <= 1):
            raise UserError(f"{place}: {ALPHA} must be a number from 0 to 1, or {VALIDATED}, not {alpha!r}")
        whole_number(f"{place}: {TO}", made.get(TO, 1), 1)
        yield row, derived_config(rows[made[OF]], made), dict(made)


def derived_config(config: Config, made: Config) -> Config:
    """The configuration of a row derived from the row with `config`: it is not trained."""
    left_out = ("loss", "miner", "regularizer")
    model = {key: value for key, value in config["model"].items() if key not in left_out}
    model["loss"] = "levelfield.losses.ContrastiveLoss"  # a learner needs one
    if TO in made:
        model |= {"embedder": "levelfield.models.LinearEmbedder", "embedding_size": made[TO]}
    trainer = {key: value for key, value in config["trainer"].items() if key in ("accelerator", "precision")}
    return {**config, "model": model, "trainer": {**trainer, "limit_predict_batches": 0}}


def _trunks(path: Path, given: Any, base: Config, options: Config) -> Iterator[tuple[str, Config]]:
    """Name and configuration of each further trunk: it is stacked on the base as a method is."""
    for name, layers in mapping(given or {}, f"{path}: trunks").items():
        config = merge(base, stack(layers, path.parent, f"trunks of {path}: {name}"))
        config.pop("search", None)
        of_data = {key: value for key, value in options.items() if not key.startswith("model.")}
        yield str(name), _resolve(str(name), _with_options(config, of_data))


def _references(path: Path, given: Any, several_trunks: bool) -> list[str]:
    names = as_list(given or [])
    for name in names:
        if name not in (FEATURES, LDA, WHITENING, ONE) and not re.fullmatch(TO_SIZE, str(name)):
            raise UserError(f"{path}: no reference {name!r}; there are: features, lda, whitening, pca512, whitening512")
    if len(set(names)) < len(names) or (names and several_trunks):
        raise UserError(f"{path}: references: a name is repeated, or there are several trunks; remove it")
    return [*names, *([] if ONE in names else [ONE])]


def read_metrics(place: str, given: Any) -> list[str]:
    """The names in a study's `metrics:`, one or a list; a name with a dot is the user's own function.

    Raises:
        UserError: there is no such metric, or every study already has it.
    """
    kinds, names = ("queries", "partition"), [] if given is None else as_list(given)
    for name in names:
        if is_user_metric(str(name)):  # the study imports it when it runs
            continue
        found = named(str(name))
        if found is None or found[0].shown or found[0].kind not in kinds or min(found[1], default=1) < 1:
            further = [metric.key for metric in METRICS if not metric.shown and metric.kind in kinds]
            raise UserError(f"{place}: no metric {name!r}{nearest(str(name), further)}")
    return list(names)
