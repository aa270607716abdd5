"""The folder of what is computed once and kept: prepared images, features, what a parser takes."""

import os
from pathlib import Path


def cache_root() -> Path:
    """LEVELFIELD_CACHE, or `~/.cache/levelfield`."""
    return Path(os.environ.get("LEVELFIELD_CACHE") or Path.home() / ".cache" / "levelfield")
