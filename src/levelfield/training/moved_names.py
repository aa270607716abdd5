"""Import paths of before the modules had rooms: checkpoints and configurations that name them stay readable."""

from typing import Any

MOVED = {
    "levelfield.learner.": "levelfield.training.learner.",
    "levelfield.callbacks.": "levelfield.training.callbacks.",
}


def named_as_now(value: Any) -> Any:
    """A configuration, or a part of it, with each import path as it is today."""
    if isinstance(value, dict):
        return {key: named_as_now(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(named_as_now(part) for part in value)
    if isinstance(value, str):
        for before, now in MOVED.items():
            if value.startswith(before):
                return now + value.removeprefix(before)
    return value
