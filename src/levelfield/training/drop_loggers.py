"""Training settings without loggers: logging never changes results."""

from collections.abc import Mapping
from typing import Any

TRACKING = ("TrackTraining", "KeepInWandb")


def drop_loggers(trainer: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a Trainer without its `logger` and without our logging callbacks.

    Example:
        >>> drop_loggers({"max_epochs": 2, "logger": "WandbLogger", "callbacks": ["TrackTraining"]})
        {'max_epochs': 2}
    """
    kept = {key: value for key, value in trainer.items() if key != "logger"}
    callbacks = kept.get("callbacks")
    if isinstance(callbacks, list) and any(map(_tracks, callbacks)):
        kept["callbacks"] = [callback for callback in callbacks if not _tracks(callback)]
        if not kept["callbacks"]:
            del kept["callbacks"]
    return kept


def _tracks(callback: Any) -> bool:
    name = callback.get("class_path") if isinstance(callback, Mapping) else callback
    return str(name).rpartition(".")[2] in TRACKING
