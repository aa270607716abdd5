"""What is kept of the laptop studies in docs/results/laptop: read from its CSV files alone."""

from __future__ import annotations

import csv
import json
import sys
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from levelfield.analysis.comparison import SECOND_SEARCH, Comparison, compare_all, scores_of
from levelfield.analysis.results import ResultRow
from levelfield.analysis.search_noise import ScoreSurface
from levelfield.metrics.table import SELECTED_BY
from levelfield.study.rows import load_spec
from levelfield.study.spec import StudySpec, first_search, is_baseline
from levelfield.study.study_file import find_study

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))  # for `papers`
RESULTS = ROOT / "docs" / "results" / "laptop"
SETS = ("grocery_store", "banking77", "glyphs", "clinc150", "typefaces", "news20", "omniglot")
# Data sets that are removed, and what they were: their results are kept, and nothing trains on them again.
RESULTS_ONLY = {"typefaces": "186 type families, 93 of them unseen"}
# Studies of the same set without a search, kept in folders `<set>_<kind>` beside it.
DEFAULTS, PCA, TRANSFER = "defaults", "pca", "transfer"
# Between a method and the set whose setting it has, in a transfer study.
OF = "."

Settings = dict[str, Any]


def read_results(file: Path) -> list[ResultRow]:
    """The rows of a `results.csv`."""
    with open(file, newline="", encoding="utf-8") as text:
        return [
            ResultRow(
                line["method"],
                line["stage"],
                *(int(line[key]) if line[key] else None for key in ("trial", "run", "fold")),
                line["embedding"],
                line["metric"],
                float(line["value"]),
            )
            for line in csv.DictReader(text)
        ]


@dataclass(frozen=True)
class Tried:
    """A line of `trials.csv`: what a trial tried, its validation MAP@R (None: it failed), and whether it was chosen."""

    number: int
    value: float | None
    chosen: bool
    settings: Settings


@dataclass(frozen=True)
class LaptopSet:
    """A finished study that is kept in a folder.

    Args:
        name: The data set.
        folder: Where it is kept.
        spec: Its study file, for the spaces and the order of the methods, which are those of any set.
    """

    name: str
    folder: Path
    spec: StudySpec

    @cached_property
    def rows(self) -> list[ResultRow]:
        return read_results(self.folder / "results.csv")

    @cached_property
    def trials(self) -> dict[str, list[Tried]]:
        """The trials of each search, second searches among them."""
        found: dict[str, list[Tried]] = defaultdict(list)
        with open(self.folder / "trials.csv", newline="", encoding="utf-8") as text:
            for line in csv.DictReader(text):
                value = float(line["map_at_r"]) if line["map_at_r"] else None
                tried = Tried(int(line["trial"]), value, line["chosen"] == "1", json.loads(line["settings"]))
                found[line["method"]].append(tried)
        return dict(found)

    @property
    def methods(self) -> list[str]:
        """The methods without second searches and baselines."""
        return [each for each in self.spec.methods if each == first_search(each) and not is_baseline(each)]

    def searches_of(self, method: str) -> list[str]:
        """A method and its second searches."""
        return [each for each in self.spec.methods if first_search(each) == method]

    def chosen(self, method: str) -> Settings:
        """The setting that a search found."""
        return next(tried.settings for tried in self.trials[method] if tried.chosen)

    def runs(self, method: str, stage: str = "test", metric: str = SELECTED_BY) -> np.ndarray:
        """Scores (runs, folds) of separated embeddings; of stage `run` those of the validation folds."""
        return self.table(stage, metric)[method]

    def table(
        self, stage: str = "test", metric: str = SELECTED_BY, embedding: str = "separated"
    ) -> dict[str, np.ndarray]:
        """Method to scores (runs, folds); concatenated embeddings are one fold."""
        return scores_by_method(self.rows, stage, metric, embedding)

    def follow_up(self, kind: str) -> list[ResultRow] | None:
        """The results of a follow-up study; None where there is none yet."""
        file = self.folder.with_name(f"{self.name}_{kind}") / "results.csv"
        return read_results(file) if file.is_file() else None

    @cached_property
    def comparisons(self) -> list[Comparison]:
        """All comparisons of separated test MAP@R."""
        return compare_all(self.rows, list(self.spec.methods))

    @property
    def second_searches(self) -> list[Comparison]:
        """Each second search with the first of its method."""
        return [comparison for comparison in self.comparisons if comparison.kind == SECOND_SEARCH]

    @cached_property
    def surfaces(self) -> dict[str, ScoreSurface]:
        """Validation MAP@R over each method's settings without the noise of seeds, from the trials of its searches."""
        return {method: self._surface(method) for method in self.methods}

    def _surface(self, method: str) -> ScoreSurface:
        tried = [each for name in self.searches_of(method) for each in self.trials[name] if each.value is not None]
        values = np.array([each.value for each in tried])
        return ScoreSurface(self.spec.space(method), [each.settings for each in tried], values, self.noise(method))

    def noise(self, method: str) -> float:
        """Standard deviation over seeds of a setting's validation MAP@R, the mean over folds."""
        deviations = [self.runs(each, "run").mean(axis=1).std(ddof=1) for each in self.searches_of(method)]
        return float(fmean(deviations))


def scores_by_method(
    rows: list[ResultRow], stage: str, metric: str = SELECTED_BY, embedding: str = "separated"
) -> dict[str, np.ndarray]:
    """Method to scores (runs, folds); concatenated embeddings are one fold."""
    found = scores_of(rows, metric, embedding, stage)
    return {
        method: np.array([[score for _, score in sorted(folds.items())] for _, folds in sorted(runs.items())])
        for method, runs in found.items()
    }


def finished_sets(results: Path = RESULTS) -> list[LaptopSet]:
    """The sets whose searched study is kept, in the order of `SETS`."""
    return [
        LaptopSet(name, results / name, load_spec(find_study(f"laptop/{'glyphs' if name in RESULTS_ONLY else name}")))
        for name in SETS
        if (results / name / "trials.csv").is_file()
    ]
