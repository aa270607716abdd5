"""Reject settings that contradict a checkpoint."""

from pathlib import Path
from typing import Any

from levelfield.core.errors import UserError
from levelfield.training.import_paths import class_named

DATA_MUST_AGREE = ("num_folds", "split", "fold", "train_classes", "val_classes", "fingerprint")
ARCHITECTURE = ("trunk", "embedder", "embedding_size")


def refuse_other_model(expected: dict[str, Any], given: dict[str, Any], checkpoint: Path | str) -> None:
    """Raise UserError if an argument of the learner differs, except the origin of pretrained weights."""
    wanted, found = _leaves(expected), _leaves(given)
    for key in wanted:
        if not key.startswith("trunk.") or not key.endswith(".weights"):
            # If a class is given instead of None, its keys are below.
            below = (value for other, value in found.items() if other.startswith(f"{key}."))
            _refuse(f"model.{key}", wanted[key], found.get(key, next(below, None)), checkpoint)


def refuse_other_architecture(expected: dict[str, Any], given: dict[str, Any], checkpoint: Path | str) -> None:
    """Raise UserError if a learner cannot take the weights of the checkpoint, except those of its loss."""
    keys = [k for k in ARCHITECTURE if k in expected and k in given]  # a plain module has others; its weights must fit
    refuse_other_model({k: expected[k] for k in keys}, {k: given[k] for k in keys}, checkpoint)


def refuse_other_dataset(expected: dict[str, Any], given: dict[str, Any], checkpoint: Path | str) -> None:
    """Raise UserError if the datamodule's arguments name another data set."""
    _refuse("data.dataset", expected["dataset"]["class_path"], given["dataset"]["class_path"], checkpoint)


def refuse_other_data(expected: dict[str, Any], found: dict[str, Any], checkpoint: Path | str) -> None:
    """Raise UserError if the data on disk are not the training data of the checkpoint."""
    for key in DATA_MUST_AGREE:
        if expected.get(key) != found[key]:
            raise UserError(
                f"the data set differs from that of '{checkpoint}' ({key}): give the same data, or fit again"
            )


def _refuse(key: str, expected: Any, given: Any, checkpoint: Path | str) -> None:
    if class_named(expected) != class_named(given):
        raise UserError(
            f"--{key.replace('.init_args', '')} {_short(given)} contradicts '{checkpoint}', which was trained with "
            f"{_short(expected)}: leave the option out"
        )


def _short(value: Any) -> Any:
    return value.rpartition(".")[2] if isinstance(value, str) else value


def _leaves(config: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(config, dict) or not config:
        return {prefix: config}
    leaves: dict[str, Any] = {}
    for key, value in config.items():
        leaves |= _leaves(value, f"{prefix}.{key}" if prefix else key)
    return leaves
