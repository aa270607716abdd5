"""A model card: what a checkpoint is, its training data and its measured scores."""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from levelfield.core.files import file_hash, read_json, write_atomically, write_json
from levelfield.metrics.definitions import title_of
from levelfield.training.trust import user_packages
from levelfield.use.transfer import Score

CARD, SCORES = "README.md", "test_scores.json"
NOT_TESTED = (
    "`levelfield test` has not scored this. If it is from a study, its scores are in the study's `results.csv`."
)
LIBRARIES = ("levelfield", "torch", "lightning", "timm")
# Of each modality: its samples, a query, and the task as model hubs name it.
MODALITIES = {
    "image": ("images", "PICTURE", "image-feature-extraction"),
    "text": ("texts", "TEXT", "sentence-similarity"),
}


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

    It is Markdown, with the metadata that model hubs read.

    Args:
        paths: the checkpoints. The scores come from the file that `levelfield test` wrote next to a single checkpoint.
        checkpoints: their content.
        modality: image or text.
    """
    from huggingface_hub import ModelCard, ModelCardData

    hashes = [file_hash(path) for path in paths]
    tested = (read_json(paths[0].with_name(SCORES)) or {}) if len(paths) == 1 else {}
    if tested.get("checkpoint") != hashes[0]:
        tested = {}
    given = paths[0] if len(paths) == 1 else paths[0].parent.parent
    elsewhere = given.parent.resolve() != folder.resolve()  # an export has no checkpoint
    checkpoint = checkpoints[0]
    arguments, own = checkpoint["hyper_parameters"], checkpoint["levelfield"]
    trained = [each["levelfield"].get("data") or {} for each in checkpoints]
    sizes = [each["hyper_parameters"].get("embedding_size") for each in checkpoints]  # your own learner may have none
    trusted = user_packages({"model": arguments, "data": checkpoint.get("datamodule_hyper_parameters")})
    what, query, task = MODALITIES.get(modality or "", ("samples", "WHAT", None))
    card = ModelCard.from_template(
        ModelCardData(library_name="levelfield", tags=["metric-learning"], pipeline_tag=task),
        template_path=str(Path(__file__).with_name("card.md.j2")),
        training={part: _named(arguments.get(part)) for part in ("trunk", "loss", "embedder")} | _data(trained),
        dataset=trained[0].get("dataset", {}).get("class_path", "its own loaders").rpartition(".")[2],
        what=what,
        size=sum(sizes) if all(sizes) else None,
        models=len(checkpoints),
        distance=arguments.get("distance", "cosine"),
        tested=tested,
        scores={title_of(metric): _percent(score) for metric, score in tested.get("scores", {}).items()},
        not_tested=NOT_TESTED,
        weights=own.get("weights", "unknown"),
        licence=own.get("licence"),
        place=f"CHECKPOINTS/{given.name}" if elsewhere else given.name,
        trust="".join(f" --trust {name}" for name in sorted(trusted)),
        query=query,
        versions={name: version(name) for name in LIBRARIES} | {"checkpoint, SHA-256": ", ".join(hashes)},
    )
    write_atomically(folder / CARD, str(card).encode())
    return folder / CARD


def _percent(score: Mapping[str, Any]) -> str:
    interval = "" if score["ci95"] is None else f" ± {100 * score['ci95']:.1f}"
    return f"{100 * score['value']:.1f}{interval}"


def _data(trained: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    data = trained[0]
    if not data:
        return {"data": "its own loaders; nothing is known about the data"}
    folds = ", ".join(str(each["fold"]) for each in trained)
    fold = "the whole training half" if data["fold"] == "none" else f"fold {folds} of {data['num_folds']}"
    return {
        "data": f"{_named(data['dataset'])}, SHA-256 of the training half {data['fingerprint'][:16]}",
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
