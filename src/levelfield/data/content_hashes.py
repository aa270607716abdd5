"""SHA-256 of sample files, computed again only if a file's path, size, times or inode change."""

import hashlib
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
from jaxtyping import Bool, UInt8, UInt64

from levelfield.core.errors import FileRefused, UserError
from levelfield.core.files import DIGEST_BYTES, explain_write_errors, file_hash, is_whole, replaced_checked
from levelfield.core.paths import cache_root

# `rotten`: `content` is of an earlier reading, and the bytes have changed since without a change of `state`.
RECORD = np.dtype([("name", "<u8"), ("state", "<u8"), ("rotten", "?"), ("content", "u1", 32)])
AT_A_TIME = 256
# Before hashing more samples, the command prints a line.
MANY = 10_000


def number_of(*values: str | int) -> int:
    """A 64-bit hash of some values."""
    return int.from_bytes(hashlib.blake2b(repr(values).encode(), digest_size=8).digest(), "little")


def file_state(path: Path | str) -> int:
    """A number that changes when a file or folder changes: from its size, times and inode.

    The times include the last change (ctime), because a copied file can keep its old modification time.

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
        if path.exists() and not path.is_file():  # opening a pipe may block
            raise UserError(f"{path} is not a regular file: remove it from the data set")
        return file_hash(path)
    except OSError as error:
        raise _unreadable(path, error) from None


def kept_hashes(
    folder: str,
    names: UInt64[np.ndarray, " samples"],
    states: UInt64[np.ndarray, " samples"],
    compute: Callable[[int], str],
    again: bool,
) -> tuple[UInt8[np.ndarray, "samples 32"], Bool[np.ndarray, " samples"]]:
    """SHA-256 of each sample, from the file of its folder below `LEVELFIELD_CACHE`, and which samples are rotten.

    The bytes of a rotten sample have changed, but not the state of its file. Its first hash stays in the file until
    its state changes, so each later call finds it. A damaged file is ignored. If no file can be written, the next start
    computes the hashes again.

    Args:
        folder: the folder of the samples.
        names: a hash of each sample's file and key.
        states: from `file_state`.
        compute: returns the hexadecimal hash of the sample at a position; called in threads.
        again: whether to compute all hashes again, and to look for rotten samples.

    Raises:
        UserError: a file cannot be read.
    """
    file = cache_root() / "hashes" / f"{number_of(folder, *RECORD.names or ()):016x}"
    kept = _read(file)
    found = np.zeros(len(names), RECORD)
    found["name"], found["state"] = names, states
    known = np.zeros(len(names), bool)
    if len(kept):
        at = np.minimum(np.searchsorted(kept["name"], names), len(kept) - 1)
        known = (kept["name"][at] == names) & (kept["state"][at] == states)
        found[known] = kept[at[known]]
    contents = found["content"].copy()
    missing = np.flatnonzero(~known | again)
    if len(missing):
        if len(missing) > MANY:
            print(f"computing the SHA-256 of {len(missing):,} samples in {folder} once", file=sys.stderr)
        parts = [missing[first : first + AT_A_TIME].tolist() for first in range(0, len(missing), AT_A_TIME)]
        with ThreadPoolExecutor() as pool:
            hashes = b"".join(pool.map(lambda part: bytes.fromhex("".join(map(compute, part))), parts))
        contents[missing] = np.frombuffer(hashes, np.uint8).reshape(-1, 32)
        found["rotten"][missing] = (known & (contents != found["content"]).any(axis=1))[missing]
        sound = ~found["rotten"]
        found["content"][sound] = contents[sound]
        _write(file, np.concatenate([kept[~np.isin(kept["name"], names)], found]))
    return contents, found["rotten"]


def _read(file: Path) -> np.ndarray:
    with suppress(OSError):
        if is_whole(file):
            return np.frombuffer(file.read_bytes()[:-DIGEST_BYTES], RECORD)
    return np.empty(0, RECORD)


def _write(file: Path, records: np.ndarray) -> None:
    with suppress(FileRefused), explain_write_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        with replaced_checked(file) as opened:
            opened.write(records[np.argsort(records["name"], kind="stable")].tobytes())


def _unreadable(path: Path | str, error: OSError) -> UserError:
    return UserError(f"cannot read {path} ({error.strerror}): restore the file or remove it from the data set")
