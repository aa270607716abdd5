"""The folder of caches: prepared images, features, ledgers."""

import os
from pathlib import Path


def cache_root() -> Path:
    """LEVELFIELD_CACHE, or `~/.cache/levelfield`."""
    return Path(os.environ.get("LEVELFIELD_CACHE") or Path.home() / ".cache" / "levelfield")
