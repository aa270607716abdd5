"""What a study file says about the search: how many trials, which spaces, and which methods are searched again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from levelfield.errors import UserError, nearest
from levelfield.study.definition.configuration import Config, stack, whole_number
from levelfield.study.search.suggest import SAMPLERS, read_space

# Between a method's name and the number of a further search of it.
REPLICATE = "@"


@dataclass(frozen=True)
class SearchSettings:
    """How each method's arguments are searched before its runs.

    Args:
        trials: Settings tried of each method; 0 takes the methods as they are configured.
        sampler: `gp` (Gaussian process), `tpe` or `random`.
        batch: Trials suggested at once, so that as many workers can train them; part of the study's identity.
        prune: Whether a trial whose first fold is below the median of the earlier trials' is given up.
    """

    trials: int = 0
    sampler: str = "gp"
    batch: int = 1
    prune: bool = False


def search_settings(path: Path, search: Mapping[str, Any]) -> SearchSettings:
    """The `search:` section of the study file `path`.

    Raises:
        UserError: an unknown key or a value that is not accepted.
    """
    names = [known.name for known in fields(SearchSettings)]
    for key in search:
        if key not in names:
            raise UserError(f"{path}: unknown key 'search.{key}'{nearest(key, [*names, 'replicates'])}")
    settings = SearchSettings(**search)
    whole_number(path, "search.trials", settings.trials, 0)
    whole_number(path, "search.batch", settings.batch, 1)
    if settings.sampler not in SAMPLERS:
        raise UserError(f"{path}: search.sampler {settings.sampler!r}{nearest(str(settings.sampler), SAMPLERS)}")
    if not isinstance(settings.prune, bool):
        raise UserError(f"{path}: search.prune must be true or false, not {settings.prune!r}")
    return settings if settings.trials else SearchSettings()


def read_spaces(
    path: Path, content: Config, searches: Mapping[str, Config | None], settings: SearchSettings
) -> dict[str, Config]:
    """The space of each method: what the study's `spaces:` says, or else the `search:` of the method itself.

    Raises:
        UserError: a method has none, or one that is not a space.
    """
    methods, given = content["methods"], content.get("spaces") or {}
    if not isinstance(given, dict):
        raise UserError(f"{path}: 'spaces' must map method names to files or ranges")
    for name in given:
        if name not in methods:
            raise UserError(f"{path}: spaces: no method {name!r}{nearest(name, list(methods))}")
    if not settings.trials:
        return {}
    spaces = {}
    for name, space in searches.items():
        place = f"search of method {name} of {path}"
        if name in given:
            place = f"spaces of {path}: {name}"
            space = stack(given[name] or {}, path.parent, place)
        elif space is None and name in methods:
            raise UserError(
                f"{path}: method {name!r} has nothing to search: give its ranges under 'spaces:' "
                "(an empty {} leaves it as it is configured)"
            )
        spaces[name] = space or {}
        read_space(spaces[name], place)
    return spaces


def further_searches(path: Path, a_a: Any, methods: Sequence[str], replicates: int) -> list[tuple[str, int]]:
    """(method, number) of every search beyond the first: of the methods of `a_a` one, of all `replicates` - 1.

    Raises:
        UserError: `a_a` names no method.
    """
    again = a_a if isinstance(a_a, list) else [a_a]
    for name in again:
        if name not in methods:
            raise UserError(f"{path}: a_a: no method {name!r}{nearest(str(name), methods)}")
    return [(name, number) for name in methods for number in range(2, max(replicates, 2 if name in again else 1) + 1)]
