"""A study's definition: a small YAML file that stacks others, resolved into one plain configuration a method."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from levelfield.errors import UserError, nearest
from levelfield.metrics.table import METRICS, named
from levelfield.runtime.own_code import own_code
from levelfield.study.definition.configuration import (
    Config,
    merge,
    read_extended,
    read_yaml,
    set_dotted,
    stack,
    whole_number,
)
from levelfield.study.definition.references import is_reference, read_references
from levelfield.study.definition.search_settings import SearchSettings, read_spaces, search_settings, second_searches
from levelfield.study.definition.sweep import NAME, sweep_methods, trained_as, value_of, without_value
from levelfield.study.search.space import Space, read_space

STUDY = "study.yaml"
BASELINE = "pretrained"
ONE_PCA = "pretrained_one_pca"
COUNTS = {"folds": 4, "runs": 2, "seed": 0, "threads": 2}
SMALLEST = {"seed": 0}
KEYS = (
    "name",
    "base",
    "overrides",
    "methods",
    "sweep",
    "search",
    "spaces",
    "second_searches",
    "references",
    "metrics",
    *COUNTS,
)
SECTIONS = ("model", "data", "trainer")
# `data.fold` where all classes train; `levelfield.data.splits` has it too, with torch, which `study status` can spare.
WHOLE_HALF = "none"
# Where the data lies, how many processes read it and from what prepared file change no number.
NOT_IDENTITY = ("root", "num_workers", "cache")
TRAINING_BATCHES = ("batch_size", "samples_per_class", "replacement", "sampler", "steps_per_epoch")
# The study sets these for each job.
PER_JOB = ("data.fold", "data.num_folds", "seed_everything")


@dataclass(frozen=True)
class StudySpec:
    """What is compared and how.

    Args:
        name: Title of the study; the default output folder is `outputs/<name>`.
        folds: Class folds of the training classes; each is validated once. 1 trains on all of them for a fixed time:
            nothing is validated and the last checkpoint is tested.
        runs: Repetitions with fresh seeds.
        seed: Every job's seed is a function of this and its run.
        threads: CPU threads of a job, whoever executes it: 1 and 2 threads give different weights.
        methods: Method name to the configuration that `levelfield fit --config` takes; `arcface@2` is a second search
            and other seeds of `arcface`, for the difference that a method has with itself.
        search: How arguments are searched.
        spaces: Method name to its search space, dotted keys to ranges; a method without one is not searched.
        metrics: Test scores beside MAP@R, R-precision and precision@1, as `levelfield.metrics.table` names them.
        own_code: Method, or the baseline, to the files of one's own that it uses and their SHA-256; none for one that
            uses levelfield and installed packages alone.
        trained_as: Method to the one whose trainings it shares: what is trained once is tested in two ways.
        sweep: The dotted key that the study tries several values of, `softmax[64]` and `softmax[128]`; empty for none.
        references: What the baseline's trunk is read by besides the PCA: rows `pretrained[lda]` and the like.
    """

    name: str
    folds: int
    runs: int
    seed: int
    threads: int
    methods: dict[str, Config]
    search: SearchSettings = field(default_factory=SearchSettings)
    spaces: dict[str, Config] = field(default_factory=dict)
    metrics: list[str] = field(default_factory=list)
    own_code: dict[str, dict[str, str]] = field(default_factory=dict)
    trained_as: dict[str, str] = field(default_factory=dict)
    sweep: str = ""
    references: list[str] = field(default_factory=list)

    def trials(self, method: str) -> int:
        """Number of trials of a method, 0 for one that is not searched."""
        return self.search.trials if self.spaces.get(method) else 0

    @property
    def whole_half(self) -> bool:
        """Whether the runs train on the whole training half, without validation."""
        return self.folds == 1

    def folds_of(self, stage: str) -> int:
        """Trainings of a trial, or of a run, by its stage."""
        if stage in ("trial", "final"):
            return self.search.folds or (COUNTS["folds"] if self.whole_half else self.folds)
        return self.folds

    def space(self, method: str) -> Space:
        """What is searched for a method."""
        return read_space(self.spaces.get(method, {}), f"spaces of {self.name}: {method}")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.to_dict(), sort_keys=False)

    def identity(self) -> dict[str, Any]:
        """All that determines the results: the definition without name, roots and executor."""
        plain = self.to_dict()
        del plain["name"], plain["sweep"]  # its methods say what it is
        for key in (
            "metrics",
            "own_code",
            "trained_as",
            "references",
        ):  # a study without them is what it was before there were any
            if not plain[key]:
                del plain[key]
        for key in ("folds", "final"):
            if not plain["search"][key]:
                del plain["search"][key]
        for config in plain["methods"].values():
            if config.get("trainer", {}).get("devices") == 1:  # as in studies from before a study said how many
                del config["trainer"]["devices"]
            if config.get("model", {}).get("freeze_trunk") is False:  # as where nothing is said of it
                del config["model"]["freeze_trunk"]
            if config.get("data", {}).get("features", ...) is None:
                del config["data"]["features"]
            for place in (config.get("data", {}), _init_args(config.get("data", {}).get("dataset"))):
                for key in NOT_IDENTITY:
                    place.pop(key, None)
        return plain

    def configuration_hash(self) -> str:
        """SHA-256 of the identity; equal for equal studies, wherever they run."""
        return digest(self.identity())

    def method_hash(self, method: str) -> str:
        """SHA-256 of what determines one method's jobs, so that adding a method leaves the others' valid."""
        identity = self.identity()
        identity.pop("metrics", None)  # of the test alone
        identity.pop("references", None)
        if code := identity.pop("own_code", {}).get(method):
            identity["own_code"] = code
        if trained := identity.pop("trained_as", {}).get(method):
            identity["trained_as"] = self.method_hash(trained)
        identity["methods"] = identity["methods"][method]
        identity["spaces"] = identity["spaces"].get(method, {})
        del identity["runs"]
        return digest(identity)

    def baseline_hash(self, reference: str | None = None) -> str:
        """SHA-256 of what determines the pretrained baseline, or a reference: trunk, embedding size and data."""
        identity = self.identity()
        config = identity["methods"][next(iter(self.methods))]
        plain = {
            "folds": self.folds,
            "seed": self.seed,
            "threads": self.threads,
            "model": {key: config["model"].get(key) for key in ("trunk", "embedding_size")},
            "data": {key: value for key, value in config["data"].items() if key not in TRAINING_BATCHES},
        }
        code = self.own_code.get(BASELINE)
        if reference is not None:
            plain["reference"] = reference
        return digest({**plain, "own_code": code} if code else plain)

    def with_own_code(self) -> "StudySpec":
        """This study with one's own code as it lies here now."""
        first = self.baseline_config
        of_baseline = {"model": {"trunk": first["model"].get("trunk")}, "data": first["data"]}
        code = {name: own_code(config) for name, config in [(BASELINE, of_baseline), *self.methods.items()]}
        return replace(self, own_code={name: files for name, files in code.items() if files})

    @property
    def rows(self) -> list[str]:
        """The methods of a table: the pretrained baseline first, unless the study has baselines of its own."""
        references = [f"{BASELINE}[{name}]" for name in self.references]
        return [*([] if any(map(is_baseline, self.methods)) else [BASELINE, *references]), *self.methods]

    @property
    def baseline_config(self) -> Config:
        """The configuration whose trunk and data the pretrained baseline uses: the first method's."""
        return next(iter(self.methods.values()))


def is_baseline(method: str) -> bool:
    """Whether a method is a trunk without training: the study's baseline, or one of several, `pretrained[resnet50]`."""
    return without_value(method) == BASELINE


def reference_of(method: str) -> str | None:
    """What a baseline does to its features: `lda` of `pretrained[lda]`; None for the PCA to the methods' size."""
    name = value_of(method) if is_baseline(method) else None
    return name if is_reference(name) else None


def one_pca(baseline: str) -> str:
    """What a table calls a baseline whose concatenated embedding is one PCA, not those of the folds side by side.

    Example:
        >>> one_pca("pretrained[resnet50]")
        'pretrained_one_pca[resnet50]'
    """
    return baseline.replace(BASELINE, ONE_PCA, 1)


def digest(plain: Any) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _init_args(dataset: Any) -> Config:
    return (dataset.get("init_args") or {}) if isinstance(dataset, dict) else {}


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
    methods = content["methods"] = _methods(path, content.get("methods"))
    counts = {key: content.get(key, default) for key, default in COUNTS.items()}
    base = merge(stack(content.get("base", []), path.parent, f"base of {path}"), content.get("overrides") or {})
    metrics = content.get("metrics", base.pop("metrics", None))
    search, again = dict(content.get("search") or {}), content.get("second_searches") or []
    for key in list(overrides):
        check_override(key)
        if key in COUNTS:
            counts[key] = overrides.pop(key)
        elif key == "metrics":
            metrics = overrides.pop(key)
        elif key.startswith("search."):
            search[key.removeprefix("search.")] = overrides.pop(key)
        elif key.startswith("second_searches."):
            again = {key.removeprefix("second_searches."): overrides.pop(key)}
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
    settings = search_settings(path, search)
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
    resolved = {name: _resolve(name, config, overrides) for name, config in configs.items()}
    spaces = {name: given[without_value(name)] for name in resolved if without_value(name) in given}
    shared = {
        name: name.replace(known, shared[known], 1) for name in resolved if (known := without_value(name)) in shared
    }
    for name, second in second_searches(path, again, list(resolved)):
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
        name=str(content.get("name", path.stem)),
        **whole,
        methods=resolved,
        search=settings,
        spaces={name: spaces[name] for name in resolved if spaces.get(name)},
        metrics=further_metrics(path, metrics),
        trained_as=shared,
        sweep=swept,
        references=_references(path, content.get("references"), resolved),
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
        if not re.fullmatch(f"(?![_.-]){NAME}", str(name)):
            raise UserError(f"method name {name!r}: use letters, digits, '_', '-' and '.'")
    return {name: layers for name, layers in asked.items() if layers is not None}


def _references(path: Path, asked: Any, methods: Config) -> list[str]:
    if asked and any(map(is_baseline, methods)):
        raise UserError(f"{path}: references are of one trunk, and {BASELINE!r} is several here; leave one of them out")
    return read_references(path, asked)


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


def further_metrics(path: Path, asked: Any) -> list[str]:
    """The names in a study's `metrics:`, one or a list of them.

    Raises:
        UserError: there is no such metric, or every study has it.
    """
    names = asked if isinstance(asked, list) else [] if asked is None else [asked]
    for name in names:
        row = named(str(name))
        if row is None or row[0].shown or min(row[1], default=1) < 1:
            further = [metric.key for metric in METRICS if not metric.shown]
            raise UserError(f"{path}: metrics: no metric {name!r}{nearest(str(name), further)}")
    return list(names)


def _resolve(name: str, config: Config, overrides: Mapping[str, Any]) -> Config:
    for key, value in overrides.items():
        config = set_dotted(config, key, value)
    config.pop("seed_everything", None)
    config = {section: dict(config.get(section) or {}) for section in (*SECTIONS, *config)}
    config["trainer"]["devices"] = _devices(name, config["trainer"])
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
