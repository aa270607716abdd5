"""The papers' published scores, each with its protocol."""

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from levelfield.metrics.definitions import named

FOLDER = Path(__file__).resolve().parent
PAPERS = ("reality_check", "zhai_wu", "fehervari", "vasilev_dyakonov")
# Our key for a name that papers use. Recall@1 and precision@1 are the same number.
METRIC_NAMES = {"recall_at_1": "precision_at_1"}
# A row's own settings: in columns, and in words after the method's name.
ROW_SETTINGS = {
    "trunk": "model.trunk",
    "batch_size": "data.batch_size",
    "embedding_size": "model.embedding_size",
    "samples_per_class": "data.samples_per_class",
    "class_fraction": "model.loss.init_args.class_fraction",
}
UNBALANCED = {"data.sampler": "ShuffledBatchSampler", "data.samples_per_class": None, "data.replacement": False}
# Arguments that distinguish methods with the same loss, and their defaults in our losses.
DEFAULTS = {"beta_per_class": False, "triplets_per_anchor": "all"}
# Scores by the paper's method, embedding and the row's own settings.
Rows = dict[tuple[str, str, tuple[tuple[str, Any], ...]], dict[str, Any]]


@dataclass(frozen=True)
class PublishedResult:
    """One row of a paper's table.

    Args:
        paper: Key of `papers()`.
        embedding: `separated` (one model's) or `concatenated` (the folds' embeddings joined).
        protocol: The settings behind the row, with the keys of our configurations.
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
        """`21.5 ± 0.2`; `-` if the paper gives no score."""
        mean, half_width = self.scores.get(metric, (None, None))
        if mean is None:
            return "-"
        return f"{100 * mean:.1f}" + ("" if half_width is None else f" ± {100 * half_width:.1f}")


def published(
    dataset: str, loss: str | None, miner: str | None = None, arguments: Mapping[str, Any] | None = None
) -> list[PublishedResult]:
    """What the papers report for a loss on a data set, one result for each row; empty if nothing is published.

    Args:
        dataset: As `levelfield data list` names it.
        loss: Name of the loss's class; None for the pretrained trunk without training.
        miner: Name of the miner's class.
        arguments: The loss's; `beta_per_class` and `triplets_per_anchor` distinguish methods with the same loss.

    Example:
        >>> [separated] = [r for r in published("cub200", "ArcFaceLoss") if r.embedding == "separated"
        ...                and r.paper == "reality_check" and r.protocol["data.batch_size"] == 32]
        >>> separated.scores["map_at_r"]
        (0.2149, 0.0016)
    """
    found = []
    for paper, content in papers().items():
        for (name, embedding, own_settings), scores in _rows(paper, dataset).items():
            method = content["methods"].get(name)
            if method is None or (method.get("loss"), method.get("miner")) != (loss, miner):
                continue
            wanted = method.get("arguments", {})
            if wanted != {key: (arguments or {}).get(key, DEFAULTS[key]) for key in wanted}:
                continue
            protocol = {
                **content["protocol"],
                **content.get("datasets", {}).get(dataset, {}),
                **content.get("trunks", {}).get(dict(own_settings).get("model.trunk"), {}),
                **dict(own_settings),
                **method.get("protocol", {}),
            }
            protocol = {key: value for key, value in protocol.items() if value is not None}
            remarks = tuple(content.get("remarks", ()))
            found.append(PublishedResult(paper, content["title"], name, embedding, protocol, remarks, scores))
    return found


@cache
def papers() -> dict[str, dict[str, Any]]:
    """Each paper's `published/protocol.yaml` by key; a paper with two protocols has two keys."""
    found: dict[str, dict[str, Any]] = {}
    for paper in PAPERS:
        content = yaml.safe_load((FOLDER / paper / "published/protocol.yaml").read_text(encoding="utf-8"))
        found |= {key: {"folder": paper, "tables": "tables.csv", **part} for key, part in content.items()}
    return found


def read_table(paper: str, name: str) -> list[dict[str, str]]:
    """The rows of a CSV file in a paper's `published` folder."""
    with (FOLDER / paper / "published" / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@cache
def _rows(paper: str, dataset: str) -> Rows:
    """The rows of a paper on a data set; one that is printed in two tables counts once."""
    rows: Rows = {}
    content = papers()[paper]
    usual = {**content["protocol"], **content.get("datasets", {}).get(dataset, {})}
    for line in read_table(content["folder"], content["tables"]):
        metric = content.get("metrics", {}).get(line["metric"], line["metric"])
        metric = METRIC_NAMES.get(metric, metric)
        if line["dataset"] != dataset or named(metric) is None:
            continue
        name, *words = re.split(r" (?=\w+=)", line["method"])
        given = {**line, **dict(word.split("=") for word in words)}
        settings: dict[str, Any] = {
            key: yaml.safe_load(given[column]) for column, key in ROW_SETTINGS.items() if given.get(column)
        }
        if str(settings.get("model.embedding_size")).endswith("bits"):
            settings["model.embedding_size"] = int(given["embedding_size"].removesuffix("bits"))
            settings["model.distance"] = "hamming"
        if settings.get("data.samples_per_class") == "none":
            settings |= UNBALANCED
        own_settings = tuple((key, value) for key, value in settings.items() if usual.get(key, ...) != value)
        cells = line.get("mean_percent") or line["percent"], line.get("ci95_half_width")
        key = name, line.get("embedding") or "separated", own_settings
        rows.setdefault(key, {})[metric] = tuple(round(float(cell) / 100, 6) if cell else None for cell in cells)
    return rows
