"""The SHA-256 of a file."""

import hashlib
from pathlib import Path


def file_hash(path: Path) -> str:
    """SHA-256 of a file, which may be larger than memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
