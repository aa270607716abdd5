"""A model card: what a checkpoint is, its training data and its measured scores."""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from levelfield.core.files import file_hash, read_json, write_atomically, write_json
from levelfield.metrics.definitions import title_of
from levelfield.training.trust import user_packages
from levelfield.use.scores import Score

CARD, SCORES = "README.md", "test_scores.json"
NOT_TESTED = (
    "`levelfield test` has not scored this. If it is from a study, its scores are in the study's `results.csv`."
)
LIBRARIES = ("levelfield", "torch", "lightning", "timm")
QUERIES = {"image": "PICTURE", "text": "TEXT"}
TASKS = {"image": "image-feature-extraction", "text": "sentence-similarity"}


def keep_scores(
    checkpoint: Path,
    scores: Mapping[str, Score],
    num_classes: int,
    num_samples: int,
    evaluation: Mapping[str, Any],
) -> None:
    """Write the scores of a test next to its checkpoint, for its cards.

    Args:
        evaluation: Number, time and reason from the ledger.
    """
    found = {metric: {"value": score.value, "ci95": score.ci95} for metric, score in scores.items()}
    content = {"checkpoint": file_hash(checkpoint), "classes": num_classes, "samples": num_samples}
    evaluated = {key: evaluation[key] for key in ("number", "time", "reason")}
    write_json(checkpoint.with_name(SCORES), {**content, "evaluation": evaluated, "scores": found})


def write_card(
    folder: Path, paths: Sequence[Path], checkpoints: Sequence[Mapping[str, Any]], modality: str | None
) -> Path:
    """Write the card of one checkpoint, or of the checkpoints of a run's folds, into a folder.

    Args:
        paths: the checkpoints. The scores come from the file that `levelfield test` wrote next to a single checkpoint.
        checkpoints: their content.
        modality: image or text.
    """
    hashes = [file_hash(path) for path in paths]
    tested = (read_json(paths[0].with_name(SCORES)) or {}) if len(paths) == 1 else {}
    scores = _scores(tested) if tested.get("checkpoint") == hashes[0] else NOT_TESTED
    given = paths[0] if len(paths) == 1 else paths[0].parent.parent
    elsewhere = given.parent.resolve() != folder.resolve()  # an export has no checkpoint
    place = f"CHECKPOINTS/{given.name}" if elsewhere else given.name
    write_atomically(folder / CARD, card(place, checkpoints, modality, scores, hashes).encode())
    return folder / CARD


def card(
    place: str,
    checkpoints: Sequence[Mapping[str, Any]],
    modality: str | None,
    scores: str,
    hashes: Sequence[str],
) -> str:
    """The card as Markdown, with the metadata that model hubs read.

    Args:
        place: `--ckpt_path` of its commands.
    """
    checkpoint = checkpoints[0]
    arguments, own = checkpoint["hyper_parameters"], checkpoint["levelfield"]
    trained = [each["levelfield"].get("data") or {} for each in checkpoints]
    data = trained[0]
    # your own learner may not have it
    sizes = [each["hyper_parameters"].get("embedding_size") for each in checkpoints]
    of = f", concatenated from {len(checkpoints)} models" if len(checkpoints) > 1 else ""
    into = f" into {sum(sizes)} numbers" if all(sizes) else ""
    licence = own.get("licence")
    head = {
        "library_name": "levelfield",
        "tags": ["metric-learning"],
        **({"pipeline_tag": TASKS[modality]} if modality in TASKS else {}),
    }
    trunk, loss = _named(arguments.get("trunk")), _named(arguments.get("loss"))
    dataset = data.get("dataset", {}).get("class_path", "its own loaders")
    sections = {"model": arguments, "data": checkpoint.get("datamodule_hyper_parameters")}
    use = " ".join([f"--ckpt_path {place}", *(f"--trust {name}" for name in sorted(user_packages(sections)))])
    what = {"image": "images", "text": "texts"}.get(modality or "", "samples")
    lines = [
        f"# {loss.partition(' (')[0]} on {dataset.rpartition('.')[2]}",
        f"Embeds {what}{into}{of}, compared by {arguments.get('distance', 'cosine')}.",
        "## Training",
        _table({"trunk": trunk, "loss": loss, "embedder": _named(arguments.get("embedder")), **_data(trained)}),
        "## Scores on classes that it was not trained on",
        scores,
        "## Licence",
        f"Initial weights of the trunk: {own.get('weights', 'unknown')}. Licence of these weights: "
        f"{licence or 'not given by their source'}.",
        "## Use" + "\n\nCHECKPOINTS is the folder of the checkpoint, which is not here." * ("/" in place),
        f"    levelfield predict {use} --data PATH\n"
        f"    levelfield search {use} PATH --query {QUERIES.get(modality or '', 'WHAT')}",
        "## Versions",
        _table({name: version(name) for name in LIBRARIES} | {"checkpoint, SHA-256": ", ".join(hashes)}),
    ]
    body = "\n\n".join(lines).replace("<", "&lt;")  # text from others may contain HTML
    return f"---\n{yaml.safe_dump(head)}---\n\n{body}\n"


def _scores(tested: Mapping[str, Any]) -> str:
    shown = _table({title_of(metric): _percent(score) for metric, score in tested["scores"].items()})
    evaluated = tested["evaluation"]
    reason = f", {evaluated['reason']}" if evaluated["reason"] else ""
    return (
        f"{tested['classes']:,} classes, {tested['samples']:,} samples. Percent; ± is half a 95% interval over the "
        f"classes.\n\n{shown}\n\nEvaluated on the test classes on {evaluated['time']}: "
        f"evaluation {evaluated['number']}{reason}."
    )


def _percent(score: Mapping[str, Any]) -> str:
    interval = "" if score["ci95"] is None else f" ± {100 * score['ci95']:.1f}"
    return f"{100 * score['value']:.1f}{interval}"


def _data(trained: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    data = trained[0]
    if not data:
        return {"data": "its own loaders; nothing is known about the data"}
    arguments = data["dataset"].get("init_args") or {}
    given = ", ".join(f"{key} {value}" for key, value in arguments.items() if value is not None)
    name = data["dataset"]["class_path"].rpartition(".")[2]
    folds = ", ".join(str(each["fold"]) for each in trained)
    fold = "the whole training half" if data["fold"] == "none" else f"fold {folds} of {data['num_folds']}"
    return {
        "data": f"{name}{f' ({given})' if given else ''}, SHA-256 of the training half {data['fingerprint'][:16]}",
        "protocol": f"classes split by `{data['split']}`, {fold}",
        "classes trained on": ", ".join(f"{len(each['train_classes']):,}" for each in trained),
        "classes validated": ", ".join(f"{len(each['val_classes']):,}" for each in trained),
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
