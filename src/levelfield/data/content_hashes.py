"""SHA-256 of samples' files, computed once: a file is the same while its path, size, times and inode are."""

import hashlib
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
from jaxtyping import UInt8, UInt64

from levelfield.errors import FileRefused, UserError
from levelfield.runtime.cache_root import cache_root
from levelfield.storage.atomic import storing
from levelfield.storage.checked_file import DIGEST_BYTES, is_whole, replaced_checked
from levelfield.storage.file_hash import file_hash

RECORD = np.dtype([("name", "<u8"), ("state", "<u8"), ("content", "u1", 32)])
AT_A_TIME = 256
# The command says so before it hashes more samples than these.
MANY = 10_000


def number_of(*values: str | int) -> int:
    """64 bits that stand for some values."""
    return int.from_bytes(hashlib.blake2b(repr(values).encode(), digest_size=8).digest(), "little")


def file_state(path: Path | str) -> int:
    """Another number once a file or folder has changed: from its size, its times of modification and its inode.

    The time of the last change (ctime) counts too: a copy that keeps the modification time does not keep it.

    Raises:
        UserError: there is no such file.
    """
    try:
        status = os.stat(path)
    except OSError as error:
        raise _unreadable(path, error) from None
    return number_of(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def sample_hash(path: Path) -> str:
    """SHA-256 of a sample's file.

    Raises:
        UserError: it cannot be read, or is not a regular file.
    """
    try:
        if path.exists() and not path.is_file():  # opening a pipe may take for ever
            raise UserError(f"{path} is not a regular file: take it out of the data set")
        return file_hash(path)
    except OSError as error:
        raise _unreadable(path, error) from None


def kept_hashes(
    folder: str,
    names: UInt64[np.ndarray, " samples"],
    states: UInt64[np.ndarray, " samples"],
    compute: Callable[[int], str],
    again: bool,
) -> UInt8[np.ndarray, "samples 32"]:
    """SHA-256 of each sample, from the file below `LEVELFIELD_CACHE` that keeps those of a folder.

    A damaged file counts as none. Where none can be written, the next start computes the hashes again.

    Args:
        folder: holds the samples.
        names: a number for each sample's file and key.
        states: by `file_state`.
        compute: gives the hash of the sample at a position, in hexadecimal digits; called in threads.
        again: whether to compute them all, whatever is kept.

    Raises:
        UserError: a file cannot be read.
    """
    file = cache_root() / "hashes" / f"{number_of(folder):016x}"
    kept = _read(file)
    found = np.zeros(len(names), RECORD)
    found["name"], found["state"] = names, states
    known = np.zeros(len(names), bool)
    if len(kept) and not again:
        at = np.minimum(np.searchsorted(kept["name"], names), len(kept) - 1)
        known = (kept["name"][at] == names) & (kept["state"][at] == states)
        found["content"][known] = kept["content"][at[known]]
    if not known.all():
        missing = np.flatnonzero(~known).tolist()
        if len(missing) > MANY:
            print(f"computing the SHA-256 of {len(missing):,} samples in {folder} once", file=sys.stderr)
        parts = [missing[first : first + AT_A_TIME] for first in range(0, len(missing), AT_A_TIME)]
        with ThreadPoolExecutor() as pool:
            hashes = b"".join(pool.map(lambda part: bytes.fromhex("".join(map(compute, part))), parts))
        found["content"][missing] = np.frombuffer(hashes, np.uint8).reshape(-1, 32)
        _write(file, np.concatenate([kept[~np.isin(kept["name"], names)], found]))
    return found["content"]


def _read(file: Path) -> np.ndarray:
    with suppress(OSError):
        if is_whole(file):
            return np.frombuffer(file.read_bytes()[:-DIGEST_BYTES], RECORD)
    return np.empty(0, RECORD)


def _write(file: Path, records: np.ndarray) -> None:
    with suppress(FileRefused), storing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        with replaced_checked(file) as opened:
            opened.write(records[np.argsort(records["name"], kind="stable")].tobytes())


def _unreadable(path: Path | str, error: OSError) -> UserError:
    return UserError(f"cannot read {path} ({error.strerror}): restore the file or take it out of the data set")
