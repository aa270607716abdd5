"""A model card: what a checkpoint is, what it was trained on, what it scored; nothing that nobody measured."""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from levelfield.metrics.table import title_of
from levelfield.storage.atomic import read_json, write_atomically, write_json
from levelfield.storage.file_hash import file_hash
from levelfield.use.further import Section
from levelfield.use.scores import Score

CARD, SCORES = "README.md", "test_scores.json"
LIBRARIES = ("levelfield", "torch", "lightning", "timm")
QUERIES = {"image": "PICTURE", "text": "TEXT"}
TASKS = {"image": "image-feature-extraction", "text": "sentence-similarity"}


def keep_scores(
    checkpoint: Path,
    scores: Mapping[str, Score],
    num_classes: int,
    num_samples: int,
    opening: Mapping[str, Any],
    further: Sequence[Section] = (),
) -> None:
    """Write what a test found beside its checkpoint, for the cards that are written of it.

    Args:
        opening: number, time and reason, as the ledger has them.
        further: what was asked for beside the usual scores.
    """
    found = {metric: {"value": score.value, "ci95": score.ci95} for metric, score in scores.items()}
    content = {"checkpoint": file_hash(checkpoint), "classes": num_classes, "samples": num_samples}
    opened = {key: opening[key] for key in ("opening", "time", "reason")}
    if further:
        content["further"] = [section.plain() for section in further]
    write_json(checkpoint.with_name(SCORES), {**content, "opened": opened, "scores": found})


def write_card(folder: Path, path: Path, checkpoint: Mapping[str, Any], modality: str | None) -> Path:
    """Write the card of one checkpoint into a folder.

    Args:
        path: of the checkpoint; the scores of its test are read from the file beside it, where they are its own.
        checkpoint: its content.
        modality: what it embeds.
    """
    tested = read_json(path.with_name(SCORES)) or {}
    if tested.get("checkpoint") != file_hash(path):
        tested = {}
    write_atomically(folder / CARD, card(path, checkpoint, modality, tested).encode())
    return folder / CARD


def card(path: Path, checkpoint: Mapping[str, Any], modality: str | None, tested: Mapping[str, Any]) -> str:
    """The card's text, Markdown with the head that model hubs read."""
    arguments, own = checkpoint["hyper_parameters"], checkpoint["levelfield"]
    data = own.get("data") or {}
    licence = own.get("licence")
    head = {
        "library_name": "levelfield",
        "tags": ["metric-learning"],
        **({"pipeline_tag": TASKS[modality]} if modality in TASKS else {}),
    }
    trunk, loss = _named(arguments.get("trunk")), _named(arguments.get("loss"))
    what = {"image": "pictures", "text": "texts"}.get(modality or "", "samples")
    lines = [
        f"---\n{yaml.safe_dump(head)}---",
        f"# {loss} on {data.get('dataset', {}).get('class_path', 'loaders of its own').rpartition('.')[2]}",
        f"Embeds {what} into {arguments['embedding_size']} numbers, compared by {arguments.get('distance', 'cosine')}.",
        "## Training",
        _table({"trunk": trunk, "loss": loss, "embedder": _named(arguments.get("embedder")), **_data(data)}),
        "## Scores on classes that it was not trained on",
        _scores(tested),
        "## Licence",
        f"The trunk began from: {own.get('weights', 'not said')}. Licence of these weights: "
        f"{licence or 'not said by their source'}.",
        "## Use",
        f"    levelfield predict --ckpt_path {path.name} --data PATH\n"
        f"    levelfield search --ckpt_path {path.name} --gallery PATH --query {QUERIES.get(modality or '', 'WHAT')}",
        "## Versions",
        _table({name: version(name) for name in LIBRARIES} | {"checkpoint, SHA-256": file_hash(path)}),
    ]
    return "\n\n".join(lines) + "\n"


def _scores(tested: Mapping[str, Any]) -> str:
    if not tested:
        return "This checkpoint was not tested."
    tables = [_table({title_of(metric): _percent(score) for metric, score in tested["scores"].items()})]
    for section in tested.get("further", ()):
        rows = {row["title"]: f"{_percent(row)} {row['note']}".strip() for row in section["rows"]}
        tables += [f"{section['title']}.", _table(rows)]
    opened = tested["opened"]
    shown = "\n\n".join(tables)
    return (
        f"{tested['classes']:,} classes, {tested['samples']:,} samples. Percent; ± is half a 95% interval over the "
        f"classes.\n\n{shown}\n\nThe test classes were opened for this on {opened['time']}: "
        f"opening {opened['opening']}, {opened['reason']}."
    )


def _percent(score: Mapping[str, Any]) -> str:
    if "value" not in score:
        return ""
    interval = "" if score["ci95"] is None else f" ± {100 * score['ci95']:.1f}"
    return f"{100 * score['value']:.1f}{interval}"


def _data(data: Mapping[str, Any]) -> dict[str, str]:
    if not data:
        return {"data": "loaders of its own, of which nothing is known"}
    arguments = data["dataset"].get("init_args") or {}
    given = ", ".join(f"{key} {value}" for key, value in arguments.items() if value is not None)
    name = data["dataset"]["class_path"].rpartition(".")[2]
    fold = "the whole training half" if data["fold"] == "none" else f"fold {data['fold']} of {data['num_folds']}"
    return {
        "data": f"{name}{f' ({given})' if given else ''}, SHA-256 of the training half {data['fingerprint'][:16]}",
        "protocol": f"classes split by `{data['split']}`, {fold}",
        "classes trained on": f"{len(data['train_classes']):,}",
        "classes validated": f"{len(data['val_classes']):,}",
    }


def _named(part: Any) -> str:
    """A part by its class and arguments."""
    if not isinstance(part, Mapping):
        return str(part or "an object of Python").rpartition(".")[2]
    arguments = {key: value for key, value in (part.get("init_args") or {}).items() if not isinstance(value, dict)}
    given = ", ".join(f"{key} {value}" for key, value in arguments.items() if value is not None)
    return part["class_path"].rpartition(".")[2] + (f" ({given})" if given else "")


def _table(rows: Mapping[str, str]) -> str:
    lines = [f"| {key} | {str(value).replace('|', '/')} |" for key, value in rows.items()]
    return "\n".join(["| | |", "| --- | --- |", *lines])
