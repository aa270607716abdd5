"""The exceptions for what a user can mend, and what to say of a misspelt name or a file that cannot be written."""

import errno
import math
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

# What helps where the system refuses to store or open a file.
REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some of your quota",
    errno.EFBIG: "raise the limit of a file's size (ulimit -f)",
    errno.EACCES: "get the permission, or choose another folder",
    errno.EPERM: "get the permission, or choose another folder",
    errno.ELOOP: "remove the link",
    errno.EROFS: "choose another folder",
    errno.ENOTDIR: "a file is in the place of a folder: choose another folder",
    errno.EEXIST: "a file is in the place of a folder: choose another folder",
    errno.EISDIR: "a folder is in the place of a file: move it away",
    errno.EIO: "look after the disk",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENOLCK: "have the lock service of that file system started, or choose another folder",
}


class UserError(ValueError):
    """A mistake in the input; its message is one line that names the file, row or key and the remedy.

    The command line prints the message and exits with code 2; `--debug` shows the traceback.
    """


class TrainingFailed(UserError):  # noqa: N818  # it says what happened to a trial
    """A training without a result: its loss is not finite, or it needs more memory than there is."""


class OutOfMemory(TrainingFailed):
    """A training that needs more memory than there is, perhaps for what else runs beside it."""


class FileRefused(UserError):  # noqa: N818  # it says what the system did
    """A file that the system will not store or open; `strerror` is what the system says."""

    def __init__(self, message: str, strerror: str) -> None:
        super().__init__(message)
        self.strerror = strerror


def refuse_below(smallest: float, section: str, **given: float | None) -> None:
    """Refuse an option's number that is below `smallest`, infinite or not a number.

    Args:
        section: Where the options are, as in `--data.batch_size`.
        given: The options, without the section; None is one that nobody gave.

    Raises:
        UserError: names the option.
    """
    for key, number in given.items():
        if number is not None and not smallest <= number < math.inf:
            raise UserError(f"--{section}.{key} {number:g}: give {smallest} or more")


def nearest(name: object, names: Iterable[str], otherwise: str | None = None, cutoff: float = 0.5) -> str:
    """The end of a message on a misspelt name, whose case may be wrong too: `; did you mean 'x'?`.

    Args:
        otherwise: Said where nothing is near; by default all that there is.
        cutoff: How near, of 1 for the same.
    """
    known = list(names)
    in_small_letters = {each.lower(): each for each in known}
    if close := get_close_matches(str(name).lower(), in_small_letters, n=1, cutoff=cutoff):
        return f"; did you mean {in_small_letters[close[0]]!r}?"
    return f"; there are: {', '.join(known)}" if otherwise is None else otherwise


def refused_file(error: OSError, path: Path | str | None = None) -> FileRefused | None:
    """What to say of a file that the system will not store or open; None if the program is at fault.

    Args:
        path: The file, where `error` does not know its name.
    """
    remedy = REMEDIES.get(error.errno or 0)
    place = path or error.filename2 or error.filename or "a file"
    if remedy is None:
        return None
    said = error.strerror or ""
    return FileRefused(f"{place}: {said}; {remedy} and start the command again", said)
