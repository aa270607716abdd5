"""Let one process write a cache while others wait."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from levelfield.core.errors import FileRefused, UserError
from levelfield.core.files import Lock

Made = TypeVar("Made")


class CannotWrite(UserError):  # noqa: N818
    """A cache cannot be written."""


def made_once(
    lock: Lock, read: Callable[[], Made | None], make: Callable[[], None], what: str, option: str | None = None
) -> Made:
    """The result of `read`. If there is none, one process calls `make` while the others wait for `lock`.

    Args:
        what: what is written, and where, for messages.
        option: the option that needs the cache, for messages.

    Raises:
        CannotWrite: no space.
    """
    with written(what, option), lock:
        found = read()
        if found is None:
            make()
            found = read()
    assert found is not None
    return found


@contextmanager
def written(what: str, option: str | None = None) -> Iterator[None]:
    """Turn an error of writing into one line with remedies.

    Raises:
        CannotWrite: no space.
    """
    try:
        yield
    except (OSError, FileRefused) as error:  # FileRefused comes from a lock
        remedies = ["free space there", "set the environment variable LEVELFIELD_CACHE to another folder"]
        *first, last = [*remedies, *([f"give {option} false"] if option else [])]
        raise CannotWrite(f"cannot write the {what} ({error.strerror}): {', '.join(first)}, or {last}") from None
