"""`levelfield study run|resume|status|report|table|verify|archive`."""

from argparse import Namespace
from collections.abc import Sequence

from levelfield.cli.commands import read
from levelfield.cli.options import dotted
from levelfield.cli.study_output import answer
from levelfield.study.spec import COUNTS


def parse(words: Sequence[str]) -> Namespace:
    """The options of `levelfield study` from what follows `study`; see `with_overrides`."""
    return with_overrides(read("study", words))


def with_overrides(given: Namespace) -> Namespace:
    """`overrides` gets the settings for all methods, `options` the executor's.

    Raises:
        UserError: a value that is not accepted.
    """
    if given.command not in ("run", "resume"):
        return given
    own = {
        key: value
        for key in (*COUNTS, "searches", "metrics", "selected_by", "compare")
        if (value := getattr(given, key)) is not None
    }
    asked = {**own, **dotted(given.config, given.settings)}
    given.options = {key[9:]: asked.pop(key) for key in list(asked) if key.startswith("executor.")}
    given.overrides = asked
    return given


def main(given: Namespace) -> int:
    """Run `levelfield study` and return the exit code. Ctrl-C prints how to continue and returns 130.

    Raises:
        UserError: A mistake; the command line prints it and exits with 2.
    """
    return answer(with_overrides(given))
