"""The seed of every random draw: the SHA-256 of a text with the purpose of the draw and what it depends on.

A draw does not depend on earlier draws or on other processes, so a resumed or distributed training draws the same
numbers. docs/reproducibility.md lists the draws.
"""

import hashlib
import os


def seed_of(*key: str | int, bits: int = 63) -> int:
    """The first `bits` bits of the SHA-256 of the key's parts, joined by `/`. The Mersenne Twister needs 32 bits.

    The key is the purpose, then what the draw depends on: the seed, the step, ...

    Example:
        >>> hex(seed_of("batch", 0, 3, 17, bits=32))  # printf batch/0/3/17 | sha256sum
        '0x6f5d51d4'
    """
    text = "/".join(map(str, key))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> (64 - bits)


def global_seed(given: int | None = None) -> int:
    """The given seed, or else that of Lightning's `seed_everything`, or 0."""
    return int(os.environ.get("PL_GLOBAL_SEED", 0)) if given is None else given
