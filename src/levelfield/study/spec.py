"""A resolved study: one plain configuration per row, the names of rows, and what results depend on."""

import copy
import hashlib
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from levelfield.core.configuration import Config, flatten, init_args, read_yaml
from levelfield.core.errors import UserError, naming, nearest
from levelfield.core.shape import count, has_shape
from levelfield.metrics.definitions import METRICS, SELECTED_BY, can_select, is_user_metric, named
from levelfield.study.search_space import SAMPLERS, Space, read_space
from levelfield.study.untrained import FEATURES, ONE, PCA, UNTRAINED, changes_untrained, kept_settings, untrained_config

STUDY = "study.yaml"
BASELINE = "pretrained"
ONE_PCA = f"{BASELINE}_{ONE}"
COUNTS = {"folds": 4, "runs": 2, "replicates": 1, "seed": 0, "threads": 2}
# `data.fold` of a job that trains on all training classes.
WHOLE_HALF = "none"
# Of a study.yaml; a spec checks its numbers and choices itself. Archives of results/ lack the keys with `?`.
SHAPE = {
    **{"name": str, "search": dict},
    **{key: {str: dict} for key in ("methods", "spaces", "derived?", "trunks?")},
    **{key: [str] for key in ("metrics", "sweep", "references", "modules?")},
}
MOST_JOBS = 200_000
# Kinds of the scores that can be tested in addition to those of every study.
ADDED_SCORES = ("queries", "partition")
# Keys of a derived row.
OF, ALPHA, TO, VALIDATED = "of", "alpha", "pca", "validated"
# Settings of the data that do not change results.
NOT_IDENTITY = ("root", "num_workers", "cache")
# Settings that determine the training and the test half.
HALVED_BY = ("dataset", "split", "split_seed", "keep_groups")
NAME = r"[A-Za-z0-9_.-]+"
ROW = rf"(?![_.-]){NAME}(\[[A-Za-z0-9_.,-]+\])?(@[0-9]+)?"


@dataclass(frozen=True)
class SearchSettings:
    """The search for each method's arguments before its runs.

    Args:
        trials: Settings to try for each method; 0 means no search.
        sampler: `gp` (Gaussian process), `tpe` or `random`.
        batch: Trials suggested at once, for as many workers; it changes the suggestions.
        folds: Class folds of a trial; None for those of the study, or 4 if a run trains on all classes.
        random_folds: Draw the classes of a trial's folds at random, by the study's seed: neighbours in the alphabet are
            often alike.
    """

    trials: int = 0
    sampler: str = "gp"
    batch: int = 1
    folds: int | None = None
    random_folds: bool = False

    def __post_init__(self) -> None:
        for key, smallest in (("trials", 0), ("batch", 1), ("folds", 2)):
            if getattr(self, key) is not None:
                whole_number(f"search.{key}", getattr(self, key), smallest)
        if not isinstance(self.random_folds, bool):
            raise UserError(f"search.random_folds must be true or false, not {self.random_folds!r}")
        if self.sampler not in SAMPLERS:
            raise UserError(f"search.sampler {self.sampler!r}{nearest(self.sampler, SAMPLERS)}")


@dataclass(frozen=True)
class StudySpec:
    """A resolved study; the fields are the keys of `study.yaml` in its folder.

    Args:
        name: Title of the study; the default output folder is `outputs/<name>`.
        folds: Class folds of the training classes, each validated once. 1 trains on all classes for a fixed time,
            validates nothing and tests the last checkpoint.
        runs: Repetitions with new seeds.
        seed: The seed of each job follows from this and its run.
        threads: CPU threads of a job: 1 and 2 threads give different weights.
        methods: Row to its configuration as for `levelfield fit --config`. `arcface@2` is a second search of `arcface`
            with other seeds, to measure how much a method differs from itself.
        spaces: Row to its search space, dotted keys to ranges; a row without a space is not searched.
        metrics: Test scores in addition to MAP@R, R-precision and precision@1: names in `metrics/definitions.py`, or
            import paths of your own functions of embeddings and labels, `my_metric.hubness`.
        sweep: The dotted keys with several values: `softmax[64]` and `softmax[128]`.
        blocks: Blocks of the training classes, each the validation classes of one fold; None for one per fold. With
            fewer folds only the first blocks are validated.
        derived: Row to its definition, without training: `{of: ROW, alpha: 0.5}` is the mean of that row's weights and
            its initial weights, `{of: ROW, pca: 128}` a PCA of its embeddings.
        trunks: Name to the configuration of another trunk, whose features are a row: `pretrained[features-NAME]`.
        references: Untrained rows in addition to the PCA of the trunk's features: `features`, `lda`, `whitening`,
            `pca512`, `whitening512`, `one_pca`.
        modules: Rows whose learner is a LightningModule but not a `MetricLearner`.
        selected_by: The validation score, of queries or an import path, whose largest value selects epoch and trial.
        replicates: Repetitions of the whole study with other halves of the classes, folds, searches and seeds, each a
            study in its own folder, `levelfield.study.replicates`.
        compare: The only method that is compared with the others; None compares all pairs, with a larger correction.
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
    sweep: list[str] = field(default_factory=list)
    blocks: int | None = None
    derived: dict[str, Config] = field(default_factory=dict)
    trunks: dict[str, Config] = field(default_factory=dict)
    references: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    selected_by: str = SELECTED_BY
    replicates: int = 1
    compare: str | None = None

    def __post_init__(self) -> None:
        for key in COUNTS:
            whole_number(key, getattr(self, key), int(key != "seed"))
        if self.blocks is not None:
            whole_number("blocks", self.blocks, 2)
        for name in self.metrics:
            if not _is_further_score(str(name)):
                further = [metric.key for metric in METRICS if not metric.shown and metric.kind in ADDED_SCORES]
                raise UserError(f"metrics: no metric {name!r}{nearest(name, further)}")
        if not can_select(str(self.selected_by)):
            close = nearest(self.selected_by, [metric.key for metric in METRICS if metric.kind == "queries"])
            raise UserError(f"selected_by: no validation score {self.selected_by!r}{close}")
        methods = [row for row in self.methods if not is_baseline(row) and first_search(row) == row]
        if self.compare not in (None, *methods):
            raise UserError(f"compare {self.compare!r}{nearest(self.compare, methods)}")
        each = self.runs * self.folds + self.search.trials * self.folds_of("trial")
        if (jobs := self.replicates * len(self.methods) * each) > MOST_JOBS:
            raise UserError(f"{jobs:,} jobs, but a study has at most {MOST_JOBS:,}: give fewer folds, runs or trials")

    @property
    def rows(self) -> list[str]:
        """The rows of the table: the untrained ones first."""
        return [*(row for row in self._untrained if row not in self.methods), *self.methods]

    @property
    def whole_half(self) -> bool:
        """Whether the runs train on all training classes, without validation."""
        return self.folds == 1 and self.blocks is None

    def trains(self, row: str) -> bool:
        """Whether the jobs of a row train; those of an untrained or derived row do not."""
        return row in self.methods and row not in self.derived and not is_baseline(row)

    def trials(self, row: str) -> int:
        """Number of trials of a row; 0 if it is not searched."""
        return self.search.trials if self.spaces.get(row) else 0

    def folds_of(self, stage: str) -> int:
        """Folds of a trial or of a run."""
        if stage == "trial":
            return self.search.folds or (COUNTS["folds"] if self.whole_half else self.folds)
        return self.folds

    def space(self, row: str) -> Space:
        return read_space(self.spaces.get(row, {}), f"spaces of {self.name}: {row}")

    @property
    def own_metrics(self) -> list[str]:
        """The user's own functions among the test scores."""
        return [name for name in self.metrics if is_user_metric(name)]

    # The untrained rows: learners without a step.

    @cached_property
    def _untrained(self) -> dict[str, tuple[Config, str]]:
        """Untrained row to the settings with its trunk and data, and to its map of the features."""
        found = {row: (config, PCA) for row, config in self.methods.items() if is_baseline(row)}
        if not found:
            maps = (PCA, *(name for name in self.references if name != ONE))
            for row, config in self.methods.items():
                for kind in (UNTRAINED,) if row in self.modules else maps:
                    found.setdefault(self._untrained_name(row, kind), (config, kind))
            found |= {f"{BASELINE}[{FEATURES}-{name}]": (config, FEATURES) for name, config in self.trunks.items()}
        with_one = ONE in self.references and self.folds > 1
        of_pca = {name: each for name, each in found.items() if each[1] == PCA}
        one = {one_pca(name): (config, ONE) for name, (config, _) in of_pca.items()} if with_one else {}
        return {**of_pca, **found, **one}

    def _untrained_name(self, row: str, kind: str) -> str:
        """`pretrained`; in a sweep that changes the untrained embedding, one name per value: `pretrained[pca-96]`."""
        if kind == UNTRAINED:
            return f"{BASELINE}[{UNTRAINED}-{re.sub(r'[^A-Za-z0-9_.]+', '-', row).strip('-')}]"
        names = (value_of(row) or "").split(",")
        if len(names) != len(self.sweep) or not names[0]:  # a row without a sweep: its configured values
            settings = {key.replace(".init_args", ""): value for key, value in flatten(self.methods[row])}
            values = [str(settings.get(key.replace(".init_args", ""), "default")) for key in self.sweep]
            names = [re.sub(r"[^A-Za-z0-9_.]+", "_", value) for value in values]
        swept = [name for key, name in zip(self.sweep, names, strict=True) if changes_untrained(key, kind)]
        name = "-".join([kind, *swept])
        return BASELINE if name == PCA else f"{BASELINE}[{name}]"

    def baseline_of(self, row: str) -> str:
        """The untrained row to compare a trained row with: the PCA of its trunk's features."""
        if own := list(filter(is_baseline, self.methods)):
            name = f"{BASELINE}[{value_of(row)}]"
            return name if name in own else own[0]
        return self._untrained_name(row, UNTRAINED if row in self.modules else PCA)

    @property
    def baselines(self) -> dict[str, str]:
        """Trained row to its untrained row."""
        return {row: self.baseline_of(row) for row in self.methods if not is_baseline(row)}

    def config_of(self, row: str) -> Config:
        """The configuration of a row as for `levelfield fit --config`."""
        if not is_baseline(row):
            return self.methods[row]
        config, kind = self._untrained[row]
        return untrained_config(config, kind, self.folds)

    def reference_of(self, row: str) -> str:
        """The map of an untrained row: a name of `references`, or `pca` (to the embedding size of the methods)."""
        return self._untrained[row][1]

    def with_configs(self, change: Callable[[Config], Config]) -> "StudySpec":
        """The same study with all configurations changed."""
        methods, trunks = ({row: change(each) for row, each in of.items()} for of in (self.methods, self.trunks))
        return replace(self, methods=methods, trunks=trunks)

    @cached_property
    def halves(self) -> dict[str, str]:
        """Row to a hash that is equal for rows with the same training and test samples."""
        data = {row: _without_places(self.config_of(row))["data"] for row in self.rows}
        return {row: digest([each.get(key) for key in HALVED_BY]) for row, each in data.items()}

    # Identity.

    def settings(self, row: str) -> Config:
        """The settings that a row's results depend on; other rows do not change them, nor do more folds of blocks."""
        kind = self.reference_of(row) if is_baseline(row) else None
        common: Config = {"seed": self.seed, "threads": self.threads}
        if self.blocks is not None:
            common["blocks"] = self.blocks
        of_all_folds = kind in (PCA, ONE) or (self.trials(row) and not self.search.folds)
        if self.blocks is None or of_all_folds:  # the folds of its trials, and of the PCA for all folds together
            common["folds"] = self.folds
        if self.selected_by != SELECTED_BY:
            common["selected_by"] = self.selected_by
        if kind is not None:
            return {**common, **kept_settings(_without_places(self._untrained[row][0]), kind), "projection": kind}
        if row in self.derived:
            common |= {"derived": self.derived[row], OF: self.settings(self.derived[row][OF])}
        elif self.trials(row):
            search = {key: value for key, value in asdict(self.search).items() if key != "random_folds" or value}
            common |= {"search": search, "space": self.spaces[row]}
        return {**common, **_without_places(self.methods[row])}

    def class_settings(self, row: str) -> Config:
        """The settings that name the classes of a row, and your own metric that selects its epochs."""
        config = self.config_of(row)
        if is_baseline(row) and self.reference_of(row) != UNTRAINED:  # its loss is never called
            config = {**config, "model": {**config["model"], "loss": None}}
        metrics = [self.selected_by] if is_user_metric(self.selected_by) else []
        return {**config, "space": self.spaces.get(row, {}), "metrics": metrics}

    @cached_property
    def row_hashes(self) -> dict[str, str]:
        """Row to SHA-256 of its settings."""
        return {row: digest(self.settings(row)) for row in self.rows}

    def configuration_hash(self) -> str:
        """SHA-256 of the whole study; equal for equal studies, wherever they run."""
        folds = {} if self.blocks is None else {"folds": self.folds}
        return digest({"rows": self.row_hashes, "runs": self.runs, "metrics": self.metrics, **folds})

    # study.yaml

    def to_yaml(self) -> str:
        """The content of `study.yaml`, without aliases, which an archive must not have: `asdict` copies each value."""
        return yaml.safe_dump(asdict(self), sort_keys=False)

    @classmethod
    def read(cls, path: Path) -> "StudySpec":
        """The resolved `study.yaml` of a study's folder.

        Raises:
            UserError: it is missing or damaged, or a row has an impossible name.
        """
        try:
            if has_shape(content := read_yaml(path), SHAPE):
                with naming(path):
                    spec = cls(**{**content, "search": SearchSettings(**content["search"])})
                if spec.row_hashes and all(re.fullmatch(ROW, row) for row in spec.methods):
                    return spec
        except (TypeError, AttributeError, KeyError, StopIteration):
            pass
        raise UserError(f"{path} is damaged, or not the study.yaml of a study folder; restore it from a copy")


def whole_number(place: str, value: Any, smallest: int) -> None:
    """Raise a UserError that names `place` unless `value` is a whole number of at least `smallest`."""
    if not count(value) or value < smallest:
        raise UserError(f"{place} must be a whole number of at least {smallest}, not {value!r}")


def _is_further_score(name: str) -> bool:
    """Whether a test can add a score to those of every study; your own is imported when the study runs."""
    if (found := named(name)) is None:
        return is_user_metric(name)
    return not found[0].shown and found[0].kind in ADDED_SCORES and min(found[1], default=1) > 0


def digest(plain: Any) -> str:
    """SHA-256 of plain values, independent of the order of keys."""
    return hashlib.sha256(json.dumps(_with_text_keys(plain), sort_keys=True).encode()).hexdigest()


def _with_text_keys(plain: Any) -> Any:
    if isinstance(plain, dict):
        return {str(key): _with_text_keys(value) for key, value in plain.items()}
    return [_with_text_keys(each) for each in plain] if isinstance(plain, list | tuple) else plain


def _without_places(config: Config) -> Config:
    """A configuration without data folders, loggers and other settings that do not change results."""
    plain = copy.deepcopy(config)
    for place in (plain.get("data", {}), init_args(plain.get("data", {}).get("dataset"))):
        for key in NOT_IDENTITY:
            place.pop(key, None)
    plain.get("trainer", {}).pop("logger", None)
    return plain


def without_value(row: str) -> str:
    """The row without the value of a sweep: `softmax@2` of `softmax[64]@2`."""
    return re.sub(r"\[.*\]", "", row)


def value_of(row: str) -> str | None:
    """The value of a sweep: `64` of `softmax[64]`; None without a sweep."""
    found = re.search(r"\[(.*)\]", row)
    return None if found is None else found[1]


def second_search(row: str) -> str:
    """The number of a second search: `2` of `arcface@2`; empty for the first."""
    return row.partition("@")[2]


def first_search(row: str) -> str:
    """The row without the number of its second search: `arcface` of `arcface@2`."""
    return row.partition("@")[0]


def row_folder(row: str) -> str:
    """`softmax=64` for `softmax[64]`, because brackets have a meaning in shells and globs."""
    return row.replace("[", "=").replace("]", "")


def is_baseline(row: str) -> bool:
    """Whether a row is a trunk without training."""
    return without_value(row) == BASELINE or is_one_pca(row)


def is_one_pca(row: str) -> bool:
    """Whether a row is an untrained one with one model, of all training classes, whatever the folds."""
    return without_value(row) == ONE_PCA


def one_pca(baseline: str) -> str:
    """`pretrained_one_pca[pca-96]` of `pretrained[pca-96]`: one PCA of the whole training half, as long as the
    concatenated PCAs of the folds."""
    return baseline.replace(BASELINE, ONE_PCA, 1)


def named_rows(spec: StudySpec, names: Iterable[str]) -> list[str]:
    """The rows with these names, each a row or a method with several; another name is a UserError."""
    found: list[str] = []
    for name in names:
        rows = [row for row in spec.rows if name in (row, without_value(row), first_search(without_value(row)))]
        if not rows:
            raise UserError(f"no method {name!r} in {spec.name}; there are: {', '.join(spec.rows)}")
        found += rows
    return found
