"""What a study file says about the search: how many trials, which spaces, and which methods are searched again."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from levelfield.errors import UserError, nearest
from levelfield.study.definition.configuration import Config, stack, whole_number
from levelfield.study.search.space import read_space
from levelfield.study.search.suggest import SAMPLERS

# Between a method's name and the number of a second search of it.
SECOND_SEARCH_MARK = "@"
ALL = "all"


@dataclass(frozen=True)
class SearchSettings:
    """How each method's arguments are searched before its runs.

    Args:
        trials: Settings tried of each method; 0 takes the methods as they are configured.
        sampler: `gp` (Gaussian process), `tpe` or `random`.
        batch: Trials suggested at once, so that as many workers can train them; part of the study's identity.
        prune: Whether a trial whose first fold is below the median of the earlier trials' is given up.
        folds: Class folds that each trial is trained on; None for the study's, or 4 where that trains on all classes.
        final: How many of the best trials are trained again, with fresh seeds, before one is chosen; 0 chooses the best
            trial as it is.
    """

    trials: int = 0
    sampler: str = "gp"
    batch: int = 1
    prune: bool = False
    folds: int | None = None
    final: int = 0


def search_settings(path: Path, search: Mapping[str, Any], asked: Collection[str] = ()) -> SearchSettings:
    """The `search:` section of the study file `path`.

    Args:
        asked: Which of its keys the command line gives; how to search is in vain where nothing is searched.

    Raises:
        UserError: an unknown key or a value that is not accepted.
    """
    names = [known.name for known in fields(SearchSettings)]
    for key in search:
        if key not in names:
            raise UserError(f"{path}: unknown key 'search.{key}'{nearest(key, names)}")
    settings = SearchSettings(**search)
    whole_number(path, "search.trials", settings.trials, 0)
    whole_number(path, "search.batch", settings.batch, 1)
    if settings.folds is not None:
        whole_number(path, "search.folds", settings.folds, 2)
    whole_number(path, "search.final", settings.final, 0)
    if settings.final == 1 or settings.final > settings.trials > 0:
        raise UserError(
            f"{path}: search.final {settings.final}: there is nothing to choose from one, nor from more than the "
            f"{settings.trials} trials; give 2 to {settings.trials}, or 0 for the best trial as it is"
        )
    if settings.sampler not in SAMPLERS:
        raise UserError(f"{path}: search.sampler {settings.sampler!r}{nearest(str(settings.sampler), SAMPLERS)}")
    if not isinstance(settings.prune, bool):
        raise UserError(f"{path}: search.prune must be true or false, not {settings.prune!r}")
    if not settings.trials and (in_vain := [key for key in asked if key != "trials"]):
        raise UserError(f"--search.{in_vain[0]}: the study searches nothing; give --search.trials too")
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


def second_searches(
    path: Path, given: Any, options: Mapping[str, Any], methods: Sequence[str]
) -> list[tuple[str, str]]:
    """(method, `method@2`) of every second search that `second_searches:` asks for: `all`, `[method, ...]`, `{all: 2}`.

    Args:
        given: What the study file says.
        options: Method, or `all`, to number, laid over it: `all` takes the place of what the file says.

    Raises:
        UserError: it names no method, or no number of searches.
    """
    listed = given if isinstance(given, dict | list) else [given]
    for name in (*listed, *options):
        if name not in (ALL, *methods):
            raise UserError(f"{path}: second_searches: no method {name!r}{nearest(name, [ALL, *methods])}")
    names: dict[str, int] = {**(listed if isinstance(listed, dict) else dict.fromkeys(listed, 1)), **options}
    if ALL in options:
        names = dict(options)
    for name, number in names.items():
        whole_number(path, f"second_searches.{name}", number, 0)
    return [
        (method, f"{method}{SECOND_SEARCH_MARK}{number}")
        for method in methods
        for number in range(2, 2 + names.get(method, names.get(ALL, 0)))
    ]


def first_search(method: str) -> str:
    """The method without the number of its second search: `arcface` of `arcface@2`."""
    return method.partition(SECOND_SEARCH_MARK)[0]
