"""What one process makes and others wait for: prepared images, features, tables."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from levelfield.errors import FileRefused, UserError
from levelfield.storage.lock import Lock

Made = TypeVar("Made")


def made_once(
    lock: Lock, read: Callable[[], Made | None], make: Callable[[], None], what: str, option: str | None = None
) -> Made:
    """What `read` finds. Where it finds nothing, one process calls `make` while the others wait for `lock`.

    Args:
        what: is made, and where.
        option: of the command, without which nothing has to be made.

    Raises:
        UserError: no room to write.
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
    """Say in a line what cannot be written, and what helps.

    Raises:
        UserError: no room to write.
    """
    try:
        yield
    except (OSError, FileRefused) as error:  # the latter is a lock's
        remedies = ["make room there", "give another folder by the environment variable LEVELFIELD_CACHE"]
        *first, last = [*remedies, *([f"leave {option} out"] if option else [])]
        raise UserError(f"cannot write the {what} ({error.strerror}): {', '.join(first)}, or {last}") from None
