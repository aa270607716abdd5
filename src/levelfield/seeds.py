"""Where every random draw starts: the SHA-256 of a text that says what the draw is for and what it depends on.

Nothing else enters, neither what the process drew before nor who else draws: a resumed or shared training draws what an
undisturbed one would. docs/reproducibility.md lists the draws.
"""

import hashlib


def seed_of(*key: str | int, bits: int = 63) -> int:
    """The first `bits` bits of the SHA-256 of the key's parts with `/` between them.

    Args:
        key: what is drawn, then what it depends on: the seed, the step, ... A number by its decimal digits.
        bits: 63 suit torch and numpy; libraries that seed the Mersenne Twister take 32.

    Example:
        >>> hex(seed_of("batch", 0, 3, 17, bits=32))  # printf batch/0/3/17 | sha256sum
        '0x6f5d51d4'
    """
    text = "/".join(map(str, key))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> (64 - bits)
