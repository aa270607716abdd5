"""The folder of caches: prepared images, features, ledgers."""

import os
from pathlib import Path

from levelfield.core.errors import UserError


def cache_root() -> Path:
    """LEVELFIELD_CACHE, or `~/.cache/levelfield`.

    Raises:
        UserError: the user has no home folder, as in a container that runs under any number.
    """
    if given := os.environ.get("LEVELFIELD_CACHE"):
        return Path(given)
    try:
        return Path.home() / ".cache" / "levelfield"
    except RuntimeError:
        raise UserError("this user has no home folder: set LEVELFIELD_CACHE to a folder for caches") from None
