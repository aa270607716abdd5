"""What contradicts a checkpoint is refused, never silently replaced by what the checkpoint holds."""

import sys
from pathlib import Path
from typing import Any

from levelfield.errors import UserError

DATA_MUST_AGREE = ("num_folds", "split", "fold", "train_classes", "val_classes", "fingerprint")
DATA_MAY_DIFFER = ("root", "dataset", "eval_batch_size", "num_workers", "cache", "features")  # where and how, not what
ARCHITECTURE = ("trunk", "embedder", "embedding_size", "freeze_trunk")


def refuse_other_model(expected: dict[str, Any], given: dict[str, Any], checkpoint: Path | str) -> None:
    """Raises UserError if any of the learner's arguments differs; where pretrained weights came from does not count."""
    wanted, found = _leaves(expected), _leaves(given)
    for key in wanted:
        if not key.startswith("trunk.") or not key.endswith(".weights"):
            # Where there was no class and one is given, its keys lie below.
            below = (value for other, value in found.items() if other.startswith(f"{key}."))
            _refuse(f"model.{key}", wanted[key], found.get(key, next(below, None)), checkpoint)


def refuse_other_architecture(expected: dict[str, Any], given: dict[str, Any], checkpoint: Path | str) -> None:
    """Raises UserError if training cannot go on from the checkpoint; rates and arguments of the loss may change."""
    refuse_other_model({k: expected[k] for k in ARCHITECTURE}, {k: given[k] for k in ARCHITECTURE}, checkpoint)
    if expected["loss"] is not None:
        _refuse("model.loss", expected["loss"]["class_path"], given["loss"]["class_path"], checkpoint)


def refuse_other_folds(expected: dict[str, Any], given: dict[str, Any], checkpoint: Path | str) -> None:
    """Raises UserError if the datamodule's arguments name another data set or fold."""
    for key in ("fold", "num_folds", "split", "split_seed"):
        if key in expected:
            _refuse(f"data.{key}", expected[key], given[key], checkpoint)
    _refuse("data.dataset", expected["dataset"]["class_path"], given["dataset"]["class_path"], checkpoint)


def refuse_other_settings(expected: dict[str, Any], given: dict[str, Any], checkpoint: Path | str) -> None:
    """Raises UserError if any of the datamodule's arguments differs that is neither a place nor a speed."""
    refuse_other_folds(expected, given, checkpoint)
    wanted, found = ({k: v for k, v in config.items() if k not in DATA_MAY_DIFFER} for config in (expected, given))
    for key, value in _leaves(wanted).items():
        _refuse(f"data.{key}", value, _leaves(found).get(key), checkpoint)


def refuse_other_data(expected: dict[str, Any], found: dict[str, Any], checkpoint: Path | str) -> None:
    """Raises UserError if the data on disk are not those that the checkpoint was trained on."""
    for key in DATA_MUST_AGREE:
        if expected.get(key) != found[key]:
            raise UserError(
                f"the data set differs from the one '{checkpoint}' was trained on ({key}): "
                "give the same data, or fit again"
            )


def refuse_finished(checkpoint: dict[str, Any], max_epochs: int | None, max_steps: int, path: Path | str) -> None:
    """Raises UserError if a fit cannot go on from the checkpoint: no step is left, or it is a state of another kind."""
    if "job" in checkpoint:
        raise UserError(
            f"'{path}' is the last state of a fit that was stopped: go on with that fit's own command and --resume, or "
            "give its best.ckpt"
        )
    if "optimizer_states" not in checkpoint:
        raise UserError(f"'{path}' holds weights alone, as a study's jobs do: give the best.ckpt of a fit")
    epochs = checkpoint["epoch"] + 1
    if max_epochs not in (None, -1) and max_epochs <= epochs:
        raise UserError(f"'{path}' has done {epochs} epochs: give --trainer.max_epochs {epochs + 1} or more to go on")
    if max_steps != -1 and max_steps <= checkpoint["global_step"]:
        steps = checkpoint["global_step"]
        raise UserError(f"'{path}' has done {steps} steps: give --trainer.max_steps {steps + 1} or more to go on")


def _refuse(key: str, expected: Any, given: Any, checkpoint: Path | str) -> None:
    if _named(expected) != _named(given):
        raise UserError(
            f"--{key.replace('.init_args', '')} {_short(given)} contradicts '{checkpoint}', trained with "
            f"{_short(expected)}: leave the option out"
        )


def _named(value: Any) -> Any:
    """The class that an import path names, for some have two paths; anything else as it is."""
    module, _, name = value.rpartition(".") if isinstance(value, str) else (None, None, None)
    return getattr(sys.modules.get(module or ""), name or "", value)


def _short(value: Any) -> Any:
    return value.rpartition(".")[2] if isinstance(value, str) else value


def _leaves(config: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(config, dict) or not config:
        return {prefix: config}
    leaves: dict[str, Any] = {}
    for key, value in config.items():
        leaves |= _leaves(value, f"{prefix}.{key}" if prefix else key)
    return leaves
