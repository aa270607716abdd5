"""What a file holds, in a line."""

import hashlib
from pathlib import Path

BLOCK = 1 << 20


def file_hash(path: Path) -> str:
    """SHA-256 of a file, which may be larger than the memory."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()
