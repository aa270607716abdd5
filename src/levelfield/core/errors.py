"""Exceptions for mistakes that a user can fix, and messages for misspelt names and files that cannot be written."""

import errno
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

# What to do if the system cannot store or open a file; its own message says what is wrong.
REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "get the permission, or choose another folder"),
    **dict.fromkeys((errno.ELOOP, errno.ENOTDIR, errno.EEXIST, errno.EISDIR), "move it away, or choose another path"),
    **dict.fromkeys((errno.EIO, errno.ENOLCK), "choose another path"),
    errno.ENAMETOOLONG: "give a shorter name",
    **dict.fromkeys((errno.EFBIG, errno.EMFILE), "raise the limit (ulimit -f, ulimit -n)"),
}


class UserError(ValueError):
    """A mistake in the input. Its message is one line that names the file, row or key, and how to fix it."""


class TrainingFailed(UserError):  # noqa: N818  # the name says what happened to a trial
    """A training without a result: its loss is not finite, or memory is exhausted."""


class OutOfMemory(TrainingFailed):
    """A training that needs more memory than is free now."""


class FileRefused(UserError):  # noqa: N818  # the name says what the system did
    """The system cannot store or open a file; `strerror` is its message."""

    strerror = ""


@contextmanager
def naming(place: object) -> Iterator[None]:
    """Put the file or key that a UserError is about before its message."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{place}: {error}") from error


def refuse_below(smallest: float, section: str, **given: float | None) -> None:
    """Raise a UserError for an option, such as `--data.batch_size`, below `smallest`, infinite or not a number."""
    for key, number in given.items():
        if number is not None and not smallest <= number < math.inf:
            raise UserError(f"--{section}.{key} {number:g}: give {smallest} or more")


def nearest(name: object, names: Iterable[str], otherwise: str | None = None, cutoff: float = 0.5) -> str:
    """The end of a message on a misspelt name: `; did you mean 'x'?`.

    It is `otherwise`, or a list of all names, if no name has a similarity of `cutoff` (1 means equal, in any case).
    """
    known = list(names)
    in_small_letters = {each.lower(): each for each in known}
    if close := get_close_matches(str(name).lower(), in_small_letters, n=1, cutoff=cutoff):
        return f"; did you mean {in_small_letters[close[0]]!r}?"
    return f"; there are: {', '.join(known)}" if otherwise is None else otherwise


def refused_file(error: OSError, path: Path | str | None = None) -> FileRefused | None:
    """The error for a file that the system cannot store or open; None if the program is at fault."""
    remedy = REMEDIES.get(error.errno or 0)
    if path is not None and error.errno == errno.ENOENT:  # to be stored: not even its folder can be made
        remedy = "choose another folder"
    if remedy is None:
        return None
    place, message = path or error.filename2 or error.filename or "a file", error.strerror or ""
    refused = FileRefused(f"{place}: {message}; {remedy} and start the command again")
    refused.strerror = message
    return refused
