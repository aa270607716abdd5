"""What is searched of a method: ranges of numbers, values to choose from, and arguments that go together."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from levelfield.errors import UserError

SCALES = ("linear", "log")


@dataclass(frozen=True)
class Range:
    """Where one argument is searched.

    Args:
        low: Smallest value, in the argument's own unit.
        high: Largest value, tried too.
        scale: `linear`, or `log` for an argument whose order of magnitude is sought.
        integer: Whether only whole numbers are tried.
        tied: Dotted keys of further arguments that have the same value.
    """

    low: float
    high: float
    scale: str = "linear"
    integer: bool = False
    tied: tuple[str, ...] = ()

    def position(self, value: float) -> float:
        """Where `value` is between `low` (0) and `high` (1), in the range's scale."""
        if self.scale == "log":
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def at(self, position: float) -> float:
        """The value at a position in [0, 1]."""
        # A whole number's share reaches half a step to either side, the bounds' as well.
        half = 0.5 if self.integer else 0.0
        low, high = self.low - half, self.high + half
        value = low * (high / low) ** position if self.scale == "log" else low + (high - low) * position
        value = min(max(round(value) if self.integer else value, self.low), self.high)
        return int(value) if self.integer else value

    def keys(self, key: str) -> Iterator[str]:
        """The arguments that it sets, given the key of its own line."""
        yield from (key, *self.tied)

    def settings(self, key: str, value: float) -> dict[str, Any]:
        """What it sets where `value` is tried."""
        return dict.fromkeys(self.keys(key), value)

    def coordinate(self, key: str, parameters: Mapping[str, Any]) -> float:
        """The value that was tried."""
        return parameters[key]


@dataclass(frozen=True)
class Choice:
    """Values that one argument has, without order; one is tried by its number.

    Args:
        options: What each of them sets, dotted key to value: the argument and what follows from it, the same keys.
    """

    options: tuple[dict[str, Any], ...]

    def at(self, position: float) -> int:
        """The option at a position in [0, 1]; each has the same share."""
        return min(int(position * len(self.options)), len(self.options) - 1)

    def keys(self, key: str) -> Iterator[str]:
        """The arguments that it sets."""
        yield from self.options[0]

    def settings(self, key: str, number: int) -> dict[str, Any]:
        """What it sets where option `number` is tried."""
        return dict(self.options[number])

    def coordinate(self, key: str, parameters: Mapping[str, Any]) -> int:
        """The option that was tried."""
        tried = {each: parameters[each] for each in self.keys(key)}
        return next(number for number, option in enumerate(self.options) if option == tried)


Space = dict[str, Range | Choice]


def settings(space: Space, found: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted key to value of all arguments that a point of a space sets, in the order of the space."""
    return {each: value for key in space for each, value in space[key].settings(key, found[key]).items()}


def coordinates(space: Space, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The point of a space at which `settings` gives these parameters."""
    return {key: place.coordinate(key, parameters) for key, place in space.items()}


def read_space(content: Mapping[str, Any], where: str) -> Space:
    """Read a search space: dotted keys, each with `{low, high, scale, integer, tied}` or `{values}`.

    `values` is a list, or a mapping of each value to the settings that follow from it, which may set the key itself:
    `data.batch_size: {values: {32: {data.samples_per_class: 4}, 64: {data.samples_per_class: 8}}}`.

    Args:
        where: Its name in messages.

    Raises:
        UserError: names `where`, the key and what is wrong with it.

    Example:
        >>> read_space({"model.loss.init_args.margin": {"low": 0, "high": 90}}, "my_space.yaml")
        {'model.loss.init_args.margin': Range(low=0.0, high=90.0, scale='linear', integer=False, tied=())}
    """
    if not isinstance(content, Mapping):
        raise UserError(f"{where} must map dotted keys to ranges, such as 'model.loss_lr: {{low: 1e-5, high: 1}}'")
    space: Space = {}
    for key, entry in content.items():
        place = f"{where}: {key}"
        if not isinstance(entry, Mapping):
            raise UserError(
                f"{place} must be a range, such as {{low: 0, high: 1, scale: linear}}, or {{values: [...]}}, not "
                f"{entry!r}"
            )
        space[str(key)] = _read_choice(str(key), entry, place) if "values" in entry else _read_range(entry, place)
    _refuse_set_twice(space, where)
    return space


def _refuse_set_twice(space: Space, where: str) -> None:
    taken: dict[str, str] = {}
    for key, place in space.items():
        for each in place.keys(key):
            if each in taken:
                raise UserError(f"{where}: {each} is set by {taken[each]} and by {key}; leave one of them out")
            taken[each] = key


def _read_choice(key: str, entry: Mapping[str, Any], place: str) -> Choice:
    if unknown := [other for other in entry if other != "values"]:
        raise UserError(f"{place} has an unknown {unknown[0]!r}; what has values has nothing else")
    values = entry["values"]
    if isinstance(values, list):
        options = tuple({key: value} for value in values)
    elif isinstance(values, Mapping) and all(isinstance(follows, Mapping | None) for follows in values.values()):
        options = tuple({key: value, **(follows or {})} for value, follows in values.items())
    else:
        raise UserError(f"{place}: values must be a list, or map each value to the settings that follow from it")
    if len(options) < 2 or any(option in options[:number] for number, option in enumerate(options)):
        raise UserError(f"{place}: values must be two or more, all different; fix the argument in the method instead")
    if any(option.keys() != options[0].keys() for option in options):
        raise UserError(f"{place}: every value must be followed by settings of the same keys")
    return Choice(options)


def _read_range(entry: Mapping[str, Any], place: str) -> Range:
    unknown = [key for key in entry if key not in ("low", "high", "scale", "integer", "tied")]
    if unknown:
        raise UserError(f"{place} has an unknown {unknown[0]!r}; a range has low, high, scale, integer and tied")
    for key in ("low", "high"):
        value = entry.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise UserError(f"{place}: {key} must be a number, not {value!r}")
    low, high = float(entry["low"]), float(entry["high"])
    scale, integer = entry.get("scale", "linear"), entry.get("integer", False)
    if scale not in SCALES:
        raise UserError(f"{place}: scale must be linear or log, not {scale!r}")
    if not isinstance(integer, bool):
        raise UserError(f"{place}: integer must be true or false, not {integer!r}")
    if integer and not (low.is_integer() and high.is_integer()):
        raise UserError(f"{place}: the bounds of an integer range must be whole numbers, not {low:g} and {high:g}")
    if low >= high:
        raise UserError(f"{place}: low ({low:g}) must be below high ({high:g}); fix the argument in the method instead")
    if scale == "log" and low <= 0:
        raise UserError(f"{place}: a log scale needs a low above 0, not {low:g}; use scale: linear")
    tied = entry.get("tied", [])
    if not (isinstance(tied, list) and all(isinstance(each, str) for each in tied)):
        raise UserError(f"{place}: tied must list the dotted keys that have the same value, not {tied!r}")
    return Range(low, high, scale, integer, tuple(tied))
