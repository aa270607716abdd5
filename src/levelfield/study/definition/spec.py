"""A study's definition, resolved: one plain configuration a method, and what determines the results."""

import copy
import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import yaml

from levelfield.runtime.own_code import own_code
from levelfield.storage.without_trackers import without_trackers
from levelfield.study.definition.configuration import Config, init_args
from levelfield.study.definition.references import FEATURES, is_reference
from levelfield.study.definition.search_settings import SearchSettings
from levelfield.study.definition.sweep import value_of, without_value
from levelfield.study.search.space import Space, read_space

STUDY = "study.yaml"
BASELINE = "pretrained"
ONE_PCA = "pretrained_one_pca"
COUNTS = {"folds": 4, "runs": 2, "seed": 0, "threads": 2}
SMALLEST = {"seed": 0}
SECTIONS = ("model", "data", "trainer")
# `data.fold` where all classes train; `levelfield.data.splits` has it too, with torch, which `study status` can spare.
WHOLE_HALF = "none"
# Where the data lies, how many processes read it and from what prepared file change no number.
NOT_IDENTITY = ("root", "num_workers", "cache")
# What a study may leave out: one that says no more than that is the study that it is without.
LATER, LATER_OF_SEARCH = ("metrics", "own_code", "trained_as", "references"), ("folds", "final")
USUAL = (
    *(("trainer", "devices", 1), ("data", "features", False)),
    *(("model", "freeze_trunk", False), ("model", "chunk_size", None)),
    *(("model", "adapter", None), ("model", "layer_decay", 1.0), ("model", "gradient_checkpointing", False)),
    ("model", "regularizer", None),
)
TRAINING_BATCHES = ("batch_size", "samples_per_class", "replacement", "sampler", "steps_per_epoch")


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
        references: What each baseline's trunk is read by besides the PCA: rows `pretrained[lda]` and the like.
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
        return copy.deepcopy(self._identity)

    @cached_property
    def _identity(self) -> dict[str, Any]:
        """The identity, not to be changed; computed once, since a study of many methods asks once a method and run."""
        plain = self.to_dict()
        del plain["name"], plain["sweep"]  # its methods say what it is
        for settings, keys in ((plain, LATER), (plain["search"], LATER_OF_SEARCH)):
            for key in keys:
                if not settings[key]:
                    del settings[key]
        for config in plain["methods"].values():
            for section, key, usual in USUAL:
                if config.get(section, {}).get(key, ...) == usual:
                    del config[section][key]
            for place in (config.get("data", {}), init_args(config.get("data", {}).get("dataset"))):
                for key in NOT_IDENTITY:
                    place.pop(key, None)
            if "trainer" in config:
                config["trainer"] = without_trackers(config["trainer"])
        return plain

    def configuration_hash(self) -> str:
        """SHA-256 of the identity; equal for equal studies, wherever they run."""
        return digest(self._identity)

    def method_hash(self, method: str) -> str:
        """SHA-256 of what determines one method's jobs, so that adding a method leaves the others' valid."""
        identity = dict(self._identity)
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
        config = self._identity["methods"][next(iter(self.methods))]
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
        parts = [
            (BASELINE, of_baseline),
            *((name, [config, self.spaces.get(name)]) for name, config in self.methods.items()),
        ]
        code = {name: own_code(part) for name, part in parts}
        return replace(self, own_code={name: files for name, files in code.items() if files})

    @property
    def rows(self) -> list[str]:
        """The rows of a table, untrained ones first: features as they are, baselines, other references; then methods.

        Each baseline has every reference: one of each trunk where the study compares several without training.
        """
        baselines = list(filter(is_baseline, self.methods)) or [BASELINE]
        references = [reference_row(name, baseline) for name in self.references for baseline in baselines]
        features = [row for row in references if reference_of(row) == FEATURES]
        return list(dict.fromkeys([*features, *baselines, *references, *self.methods]))

    @property
    def baseline_config(self) -> Config:
        """The configuration whose trunk and data the pretrained baseline uses: the first method's."""
        return next(iter(self.methods.values()))


def is_baseline(method: str) -> bool:
    """Whether a method is a trunk without training: the study's baseline, or one of several, `pretrained[resnet50]`."""
    return without_value(method) == BASELINE


def reference_row(name: str, baseline: str) -> str:
    """The row of a reference to a baseline's trunk.

    Example:
        >>> reference_row("lda", "pretrained"), reference_row("lda", "pretrained[resnet50]")
        ('pretrained[lda]', 'pretrained[lda,resnet50]')
    """
    return f"{BASELINE}[{','.join(filter(None, (name, value_of(baseline))))}]"


def reference_of(method: str) -> str | None:
    """What a baseline does to its features: `lda` of `pretrained[lda]`; None for the PCA to the methods' size."""
    name = (value_of(method) or "").partition(",")[0] if is_baseline(method) else None
    return name if is_reference(name) else None


def baseline_of(method: str) -> str:
    """The baseline of a reference's trunk; any other row is its own.

    Example:
        >>> baseline_of("pretrained[lda]"), baseline_of("pretrained[lda,resnet50]"), baseline_of("arcface")
        ('pretrained', 'pretrained[resnet50]', 'arcface')
    """
    if reference_of(method) is None:
        return method
    trunk = (value_of(method) or "").partition(",")[2]
    return f"{BASELINE}[{trunk}]" if trunk else BASELINE


def one_pca(baseline: str) -> str:
    """What a table calls a baseline whose concatenated embedding is one PCA, not those of the folds side by side.

    Example:
        >>> one_pca("pretrained[resnet50]")
        'pretrained_one_pca[resnet50]'
    """
    return baseline.replace(BASELINE, ONE_PCA, 1)


def digest(plain: Any) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
