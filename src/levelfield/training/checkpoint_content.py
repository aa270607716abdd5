"""Check the content of a checkpoint except its tensors: plain values within limits, without paths.

A checkpoint may come from anyone. Every command checks these values before use.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from levelfield.core.errors import UserError
from levelfield.core.paths import is_place
from levelfield.core.shape import has_shape

SECTIONS = ("hyper_parameters", "datamodule_hyper_parameters", "levelfield")
# Text of a data set, which no code uses as a path.
CLASS_NAMES = ("levelfield.data.train_classes", "levelfield.data.val_classes")
MOST_VALUES, DEEPEST = 100_000, 32
MOST = 2**63 - 1
LIMITS = {
    **{"batch_size": 2**20, "eval_batch_size": 2**16, "num_folds": 10_000, "num_workers": 1024},
    **{"crop_size": 8192, "image_size": 8192, "resize": 8192},
    **{"embedding_size": 2**20, "num_classes": 2**31},
}


def check_content(checkpoint: dict[str, Any], origin: object) -> None:
    """Check the content of a checkpoint except its tensors.

    Raises:
        UserError: a part of another type, a path, a number above its limit, or too many values.
    """
    described = {section: checkpoint[section] for section in SECTIONS if section in checkpoint}
    names = checkpoint.get("state_dict")
    if not has_shape(names, {str: object}) or not all(isinstance(part, dict) for part in described.values()):
        raise UserError(f"'{origin}' is not a levelfield checkpoint: give the best.ckpt of a fit")
    _check(described, origin, is_place)


def check_callbacks(states: Any, origin: object) -> None:
    """Check the stored states of callbacks, for a fit that continues: callbacks write and delete the files named there.

    Raises:
        UserError: an address, or a path with a part `..`.
    """
    _check({"callbacks": states}, origin, partial(is_place, absolute=False))


def _check(described: Any, origin: object, is_refused: Callable[[str], bool]) -> None:
    for key, value in _values(described, origin):
        if isinstance(value, str) and is_refused(value):
            raise UserError(
                f"'{origin}' has the path or address {value[:80]!r} at {key[:80]!r}, which a checkpoint may not have: "
                "not loaded"
            )
        most = LIMITS.get(key.rpartition(".")[2], MOST)
        if isinstance(value, int) and abs(value) > most:
            raise UserError(f"'{origin}' has a number above {most:,} at {key[:80]!r}: not loaded")


def _values(described: Any, origin: object) -> Iterator[tuple[str, Any]]:
    """All nested values with their keys, and each key of a mapping."""
    to_do, count = [("", described, 0)], 0
    while to_do:
        key, value, depth = to_do.pop()
        count += 1
        if count > MOST_VALUES or depth > DEEPEST:
            raise UserError(
                f"'{origin}' holds more than {MOST_VALUES:,} values, or one inside itself, at {key[:80]!r}: it is not "
                "loaded"
            )
        if isinstance(value, dict):
            for name, part in value.items():
                below = f"{key}.{name}".strip(".") if isinstance(name, str | int) else key
                yield below, name
                if below in CLASS_NAMES:
                    _check_names(below, part, origin)
                    continue
                to_do.append((below, part, depth + 1))
        elif isinstance(value, list | tuple | set | frozenset):
            to_do += [(key, part, depth + 1) for part in value]
        else:
            yield key, value


def _check_names(key: str, value: Any, origin: object) -> None:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise UserError(f"'{origin}' has no list of names at '{key}': is it a complete file?")
