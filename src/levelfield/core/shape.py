"""Check the types of the values in a file of levelfield, which may come from anybody."""

from typing import Any

TEXT_OR_NONE = (str, type(None))


def number(value: Any) -> bool:
    """Also infinite or NaN, which a metric of the user can be."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def finite(value: Any) -> bool:
    return number(value) and abs(value) < 1e300


def count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def has_shape(value: Any, shape: Any) -> bool:
    """Whether a value has a shape: a type or several, a function of the value, `[shape]`, or a shape of a mapping.

    `{str: shape}` has any names; `{"name": shape, "name?": shape}` these, without or with those with `?`, and others.
    """
    if isinstance(shape, list):
        return isinstance(value, list) and all(has_shape(each, shape[0]) for each in value)
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return False
        if str in shape:
            return all(isinstance(name, str) and has_shape(part, shape[str]) for name, part in value.items())
        return all(
            has_shape(value[name], part) if (name := key.rstrip("?")) in value else key.endswith("?")
            for key, part in shape.items()
        )
    return isinstance(value, shape) if isinstance(shape, type | tuple) else bool(shape(value))
