"""The papers' scores next to a study's: same data set, same loss, and each difference between the protocols."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from levelfield.analysis.results import EMBEDDING_KINDS, SummaryRow, embedding_kinds
from levelfield.analysis.written_config import class_name, whole_config
from levelfield.core.configuration import flatten, init_args
from levelfield.metrics.definitions import SHOWN_METRICS, title_of
from levelfield.report.table import score_text
from levelfield.study.folder import StudyFolder
from levelfield.study.spec import WHOLE_HALF, StudySpec, is_baseline, one_pca
from levelfield.study.untrained import PCA
from papers.published import PublishedResult, papers, published

# A loss of another package may have the same name but compute something else.
KNOWN_PACKAGES = ("levelfield", "pytorch_metric_learning")
# The protocol has only the names of these.
NAMED = ("model.trunk", "model.embedder", "model.optimizer", "data.sampler")
SIZES = ("data.batch_size", "model.embedding_size")
WEIGHTS, PRETRAINED = "trunk_weights", "ImageNet's"  # or random
OF_UNTRAINED = ("model.trunk", "model.embedding_size", "data.split", "data.transforms", "folds", WEIGHTS)
MOST_COLUMNS = 4  # further metrics that fit into 80 characters


@dataclass(frozen=True)
class Counterpart:
    """A method of the study and the row of a paper with the same loss."""

    method: str
    result: PublishedResult
    differences: tuple[str, ...]

    @property
    def row(self) -> str:
        """The study's row to compare with; the Reality Check's concatenated baseline is one PCA."""
        concatenated_baseline = is_baseline(self.method) and self.result.embedding == "concatenated"
        return one_pca(self.method) if concatenated_baseline else self.method

    @property
    def title(self) -> str:
        """The paper's name with the trunk and the size of the row."""
        protocol = self.result.protocol
        size = protocol.get("model.embedding_size")
        bits = " bits" if protocol.get("model.distance") == "hamming" else ""
        return f"{self.result.method} ({protocol['model.trunk']}{f', {size}{bits}' if size else ''})"


def papers_beside(study: StudyFolder, dataset: str | None = None) -> dict[str, list[Counterpart]]:
    """What the papers report on the study's data set for its methods, by the papers' titles.

    Methods are matched by the class, miner and arguments of their loss, not by name. If a paper has several rows for
    one loss, those with the fewest differences in protocol are taken, and of these the closest in size.

    Args:
        dataset: Take the published rows of this data set instead, and list that as a difference.
    """
    spec = study.spec
    by_title: dict[str, list[Counterpart]] = {}
    for method in (row for row in spec.rows if not is_baseline(row) or spec.reference_of(row) == PCA):
        trained = next((row for row, untrained in spec.baselines.items() if untrained == method), method)
        config = whole_config(study.folder, trained)
        for row in _nearest_rows(method, config, spec, dataset) if config else []:
            by_title.setdefault(row.result.title, []).append(row)
    return by_title


def print_beside(
    console: Console, study: StudyFolder, test: Sequence[SummaryRow], dataset: str | None = None, paper: str = ""
) -> None:
    """Print `papers_beside` as tables; print nothing if nothing is published.

    Args:
        test: The study's test scores.
        dataset: As in `papers_beside`.
        paper: Key of the only paper to show; all by default.
    """
    for title, rows in papers_beside(study, dataset).items():
        if not rows[0].result.paper.startswith(paper):
            continue
        there = {metric for row in rows for metric in row.result.scores}
        own = [metric for metric in study.spec.metrics if metric in there]
        further = (own[first : first + MOST_COLUMNS] for first in range(0, len(own), MOST_COLUMNS))
        for metrics in (list(SHOWN_METRICS), *further):
            console.print(_table(title, rows, test, metrics))
        console.print("The protocols differ, so a difference does not say which is better:", style="bold")
        for sentence in differences_of(rows):
            console.print(f"  {sentence}", highlight=False, markup=False, soft_wrap=True)
        console.print()


def protocol_differences(protocol: Mapping[str, Any], config: Mapping[str, Any], spec: StudySpec) -> list[str]:
    """One sentence for each setting of a paper's protocol that differs here, with the keys of our configurations."""
    ours = {**dict(flatten(dict(config))), **dict(flatten(asdict(spec)))}
    ours |= {"stopping": _stopping(config), WEIGHTS: _weights(config)}
    for key in NAMED:
        section, _, name = key.partition(".")
        ours[key] = config[section].get(name) and _name(config[section][name])
    sentences = []
    for key, theirs in ({WEIGHTS: PRETRAINED} | dict(protocol)).items():
        here = ours.get(key)
        same = _letters(here).startswith(_letters(theirs)) if key in NAMED else here == theirs
        if not same:
            sentences.append(f"{key} {_text(here)} here, {_text(theirs)} there")
    return sentences


def dataset_name(class_path: str) -> str | None:
    """The name of one of our data sets; None for any other."""
    module, _, name = class_path.rpartition(".")
    return getattr(import_module(module), name).name if module.startswith(("levelfield.", "examples.")) else None


def _table(title: str, counterparts: list[Counterpart], test: Sequence[SummaryRow], metrics: Sequence[str]) -> Table:
    """Each method's scores in percent, the paper's below; with four metrics it fits a terminal of 80 columns."""
    table = Table(title=Text(title), box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    table.add_column("", no_wrap=True)
    for metric in metrics:
        table.add_column(title_of(metric), justify="right", no_wrap=True)
    scores = {(row.method, row.embedding, row.metric): row for row in test}
    for embedding in EMBEDDING_KINDS:
        rows = [row for row in counterparts if row.result.embedding == embedding]
        if rows:
            table.add_row(Text(embedding, style="bold"))
        for row in rows:
            ours = (score_text(scores.get((row.row, embedding, metric))) for metric in metrics)
            table.add_row(Text(f"  {row.row}"), *ours)
            theirs = (row.result.percent(metric) for metric in metrics)
            table.add_row(Text(f"    {row.title}"), *theirs, style="dim", end_section=row is rows[-1])
    return table


def _nearest_rows(method: str, config: Mapping[str, Any], spec: StudySpec, instead: str | None) -> list[Counterpart]:
    here = dataset_name(config["data"]["dataset"]["class_path"])
    dataset = instead or here
    other = [] if dataset == here else [f"data set {here or 'of your own'} here, {dataset} there"]
    loss, miner, arguments = (None, None, {}) if is_baseline(method) else _loss_of(config["model"])
    if dataset is None or (loss is None and not is_baseline(method)):
        return []
    rows: dict[tuple[str, str], list[Counterpart]] = {}
    for result in published(dataset, loss, miner, arguments):
        if result.embedding not in embedding_kinds(spec):
            continue
        same_start = result.protocol.get(WEIGHTS, PRETRAINED) == _weights(config)
        if papers()[result.paper].get("untrained") and not (method in spec.methods and same_start):
            continue  # the baseline of trained methods has its own row
        protocol = result.protocol
        if is_baseline(method):
            protocol = {key: value for key, value in protocol.items() if key.startswith(OF_UNTRAINED)}
        differences = (*other, *protocol_differences(protocol, config, spec))
        rows.setdefault((result.paper, result.embedding), []).append(Counterpart(method, result, differences))
    ours = dict(flatten(dict(config)))

    def distance(row: Counterpart) -> tuple[float, ...]:
        """Differences, then log ratios of sizes; between equally close rows, the one whose protocol has more keys."""
        protocol = row.result.protocol
        sizes = (ours[key] / protocol[key] for key in SIZES if key in protocol and key in ours)
        return len(row.differences), sum(abs(math.log(ratio)) for ratio in sizes), -len(protocol)

    nearest = {each: min(map(distance, candidates)) for each, candidates in rows.items()}
    return [row for each, candidates in rows.items() for row in candidates if distance(row) == nearest[each]]


def _loss_of(model: Mapping[str, Any]) -> tuple[str | None, str | None, dict[str, Any]]:
    """Class of the loss, class of the miner and the loss's arguments; no class if no paper here can have the loss."""
    loss = model["loss"] if isinstance(model["loss"], dict) else {"class_path": model["loss"]}
    miner = model.get("miner") or None
    package, _, _ = loss["class_path"].partition(".")
    if package not in KNOWN_PACKAGES or model.get("regularizer"):
        return None, None, {}
    return class_name(loss), None if miner is None else class_name(miner), init_args(loss)


def _weights(config: Mapping[str, Any]) -> str:
    """With which weights the trunk starts."""
    return "random" if init_args(config["model"]["trunk"]).get("weights", "given") is None else PRETRAINED


def _stopping(config: Mapping[str, Any]) -> str:
    """How the number of epochs is decided."""
    trainer = config["trainer"]
    stops_early = any("EarlyStopping" in class_name(callback) for callback in trainer.get("callbacks") or [])
    if config["data"].get("fold") != WHOLE_HALF and stops_early:
        return "early stopping"
    return f"after {trainer['max_epochs']} epochs of {config['data']['steps_per_epoch']} steps"


def _name(value: Any) -> str:
    """The name of a trunk or an optimizer: its model's, or its class's."""
    return init_args(value).get("name") or class_name(value).removesuffix("Trunk")


def _letters(text: Any) -> str:
    return "".join(letter for letter in str(text).lower() if letter.isalnum())


def _text(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def differences_of(rows: Sequence[Counterpart]) -> list[str]:
    """Each difference in one sentence, with its methods if not all rows have it; then the papers' remarks."""
    all_methods = list(dict.fromkeys(row.method for row in rows))
    methods = [method for method in all_methods if not is_baseline(method)] or all_methods
    where: dict[str, dict[str, None]] = {}
    for row in rows:
        for sentence in row.differences if row.method in methods else ():
            where.setdefault(sentence, {})[row.method] = None
    sentences = [
        sentence if list(names) == methods else f"{', '.join(names)}: {sentence}" for sentence, names in where.items()
    ]
    return [*sentences, *dict.fromkeys(remark for row in rows for remark in row.result.remarks)]
