"""Published scores of losses on the papers' data sets, with the protocol behind each."""

import csv
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

import yaml

from levelfield.metrics.table import METRICS, named

# Key by name in a paper: Recall@1 and precision@1 are one number, whether the nearest is of the query's class.
METRIC_NAMES = {name: metric.key for metric in METRICS if metric.shown for name in (metric.key, *metric.also)}
# What a row says besides: columns, and the words after a method's name.
ROW_SETTINGS = {
    "trunk": "model.trunk",
    "batch_size": "data.batch_size",
    "embedding_size": "model.embedding_size",
    "samples_per_class": "data.samples_per_class",
    "class_fraction": "model.loss.init_args.class_fraction",
}
UNBALANCED = {"data.sampler": "ShuffledBatchSampler", "data.samples_per_class": None, "data.replacement": False}


# Arguments that make two methods of one loss, as the losses have them.
DEFAULTS = {"beta_per_class": False, "triplets_per_anchor": "all"}


@dataclass(frozen=True)
class PublishedResult:
    """One row of a paper's table.

    Args:
        paper: Key in `papers.yaml`.
        embedding: `separated` (one model's) or `concatenated` (the folds' together).
        protocol: What it was obtained with, in the keys of our configurations.
        scores: Metric to (mean, half width of the 95% interval or None), fractions.
    """

    paper: str
    title: str
    method: str
    embedding: str
    protocol: dict[str, Any]
    remarks: tuple[str, ...]
    scores: dict[str, tuple[float, float | None]]

    def percent(self, metric: str) -> str:
        """`21.5 ± 0.2`, `-` where the paper gives none."""
        mean, half_width = self.scores.get(metric, (None, None))
        if mean is None:
            return "-"
        return f"{100 * mean:.1f}" + ("" if half_width is None else f" ± {100 * half_width:.1f}")


def published(
    dataset: str, loss: str | None, miner: str | None = None, arguments: Mapping[str, Any] | None = None
) -> list[PublishedResult]:
    """What the papers report for a loss on a data set.

    Args:
        dataset: as `levelfield data list` names it.
        loss: name of the loss' class; None is the pretrained trunk without training.
        miner: name of the miner's class.
        arguments: of the loss; `beta_per_class` and `triplets_per_anchor` tell methods of one loss apart.

    Returns:
        One result a row, in the papers' order; empty where nothing is published.

    Example:
        >>> [separated] = [r for r in published("cub200", "ArcFaceLoss") if r.embedding == "separated"
        ...                and r.paper == "reality_check" and r.protocol["data.batch_size"] == 32]
        >>> separated.scores["map_at_r"]
        (0.2149, 0.0016)
    """
    found = []
    for result, method in _results(dataset):
        wanted = method.get("arguments", {})
        given = {key: (arguments or {}).get(key, DEFAULTS[key]) for key in wanted}
        if (method.get("loss"), method.get("miner")) == (loss, miner) and given == wanted:
            found.append(result)
    return found


def reality_check_scores(
    dataset: str, metric: str = "precision_at_1", embedding: str = "separated", batch_size: int = 32
) -> dict[str, float]:
    """A column of the Reality Check's Tables 4 to 6 and 8: the paper's name of a method to its mean, a fraction.

    Args:
        dataset: `cub200`, `cars196` or `sop`.
        metric: `precision_at_1`, `r_precision` or `map_at_r`.
        embedding: `separated` or `concatenated`.
        batch_size: 32, or 256 on `cub200`.

    Example:
        >>> reality_check_scores("cub200")["Contrastive"]
        0.5973
    """
    found = [result for result, _ in _results(dataset) if result.paper == "reality_check"]
    return {
        result.method: result.scores[metric][0]
        for result in found
        if (result.embedding, result.protocol["data.batch_size"]) == (embedding, batch_size)
    }


def vasilev_dyakonov_scores(dataset: str, metric: str = "map_at_r") -> dict[str, float]:
    """A column of Vasilev and D'yakonov's Tables 2 to 7: their name of a loss to its score, a fraction.

    Args:
        dataset: `cars196`, `news20`, `cub200`, `dogs130`, `sop` or `wos134`.
        metric: `precision_at_1` (their recall@1) or `map_at_r`.

    Example:
        >>> vasilev_dyakonov_scores("cub200")["Circle Loss"]
        0.4478
    """
    found = [result for result, _ in _results(dataset) if result.paper == "vasilev_dyakonov"]
    return {result.method: result.scores[metric][0] for result in found}


@dataclass(frozen=True)
class Claim:
    """Recall@1 that a method's own paper reports, as Zhai and Wu collected it.

    Args:
        method: its name there.
        year: of its paper.
        embedding_size: of its embedding.
        recall_at_1: a fraction.
    """

    method: str
    year: int
    embedding_size: int
    recall_at_1: float


@cache
def claims(dataset: str) -> tuple[Claim, ...]:
    """What papers claim on a data set: Tables 5 and 6 of Zhai and Wu 2019, their own rows left out.

    Example:
        >>> claims("cars196")[0]
        Claim(method='Contrastive', year=2016, embedding_size=128, recall_at_1=0.217)
    """
    with files("levelfield.published").joinpath("claims.csv").open(encoding="utf-8") as file:
        return tuple(
            Claim(
                line["method"], int(line["year"]), int(line["embedding_size"]), round(float(line["percent"]) / 100, 6)
            )
            for line in csv.DictReader(file)
            if line["dataset"] == dataset
        )


@cache
def fehervari_recall(dataset: str) -> dict[str, tuple[float | None, float]]:
    """Recall@1 of Fehervari et al.'s methods: what each method's own paper reports, and what they measured.

    Args:
        dataset: `cub200`, `cars196` or `sop`; measured with BN-Inception.

    Returns:
        Their name of a method to both, fractions (Tables 1 to 4); None where the method's paper has none.

    Example:
        >>> fehervari_recall("cub200")["Margin Loss"]
        (0.636, 0.513)
    """
    with files("levelfield.published").joinpath("fehervari_reported.csv").open(encoding="utf-8") as file:
        lines = [line for line in csv.DictReader(file) if line["dataset"] == dataset]
    reported = {line["method"]: round(float(line["percent"]) / 100, 6) for line in lines}
    return {
        result.method: (reported.get(result.method), result.scores["precision_at_1"][0])
        for result, _ in _results(dataset)
        if (result.paper, result.protocol["model.trunk"]) == ("fehervari", "bn_inception")
    }


@lru_cache(maxsize=1)
def papers() -> dict[str, dict[str, Any]]:
    """The content of `papers.yaml`."""
    return yaml.safe_load(files("levelfield.published").joinpath("papers.yaml").read_text(encoding="utf-8"))


def _results(dataset: str) -> Iterator[tuple[PublishedResult, dict[str, Any]]]:
    """Every row of every paper on a data set that names one of our losses, with its entry in `papers.yaml`."""
    for paper, content in papers().items():
        for (name, embedding, row_settings), scores in _rows(paper, dataset).items():
            method = content["methods"].get(name)
            if method is None:
                continue
            protocol = {
                **content["protocol"],
                **content.get("datasets", {}).get(dataset, {}),
                **content.get("trunks", {}).get(dict(row_settings).get("model.trunk"), {}),
                **dict(row_settings),
                **method.get("protocol", {}),
            }
            protocol = {key: value for key, value in protocol.items() if value is not None}
            remarks = tuple(content.get("remarks", ()))
            yield PublishedResult(paper, content["title"], name, embedding, protocol, remarks, scores), method


@cache
def _rows(paper: str, dataset: str) -> dict[tuple[str, str, tuple[tuple[str, Any], ...]], dict[str, Any]]:
    """Scores by (the paper's method, embedding, the row's own settings); a row printed in two tables counts once."""
    rows: dict[tuple[str, str, tuple[tuple[str, Any], ...]], dict[str, Any]] = {}
    content = papers()[paper]
    usual = {**content["protocol"], **content.get("datasets", {}).get(dataset, {})}
    with files("levelfield.published").joinpath(f"{paper}_tables.csv").open(encoding="utf-8") as file:
        for line in csv.DictReader(file):
            metric = content.get("metrics", {}).get(line["metric"], line["metric"])
            metric = METRIC_NAMES.get(metric, metric)
            if line["dataset"] != dataset or named(metric) is None:
                continue
            name, *words = re.split(r" (?=\w+=)", line["method"])
            given = {**line, **dict(word.split("=") for word in words)}
            said = {key: given.get(column) for column, key in ROW_SETTINGS.items()}
            settings: dict[str, Any] = {key: _typed(value) for key, value in said.items() if value}
            if str(settings.get("model.embedding_size")).endswith("bits"):
                settings["model.embedding_size"] = int(given["embedding_size"].removesuffix("bits"))
                settings["model.distance"] = "hamming"
            if settings.get("data.samples_per_class") == "none":
                settings |= UNBALANCED
            typed = tuple((key, value) for key, value in settings.items() if usual.get(key, ...) != value)
            mean = float(line.get("mean_percent") or line["percent"]) / 100
            half_width = float(line["ci95_half_width"]) / 100 if line.get("ci95_half_width") else None
            key = name, line.get("embedding") or "separated", typed
            rows.setdefault(key, {})[metric] = round(mean, 6), None if half_width is None else round(half_width, 6)
    return rows


def _typed(text: str) -> int | float | str:
    """A cell as a configuration would have it."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text
