"""The identity of data: SHA-256 of sample files, computed again only if a file's path, size, times or inode change."""

import hashlib
import os
import stat
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from zlib import crc32

import numpy as np
from jaxtyping import Bool, UInt8

from levelfield.core.errors import FileRefused, UserError
from levelfield.core.files import explain_write_errors, locked, replaced
from levelfield.core.paths import cache_root

STATE = np.dtype([("path", "<u8"), ("size", "<u8"), ("mtime", "<i8"), ("ctime", "<i8"), ("inode", "<u8")])
RECORD = np.dtype([("state", STATE), ("content", "u1", 32)])
AT_A_TIME = 256
# Before hashing more samples, the command prints a line.
MANY = 10_000


def file_state(path: Path | str) -> tuple[int, int, int, int]:
    """Numbers that change when a file or folder changes: its size, times and inode.

    The times include the last change (ctime), because a copied file can keep its old modification time.

    Raises:
        UserError: there is no such file.
    """
    try:
        status = os.stat(path)
    except OSError as error:
        raise _unreadable(path, error) from None
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def file_hash(path: Path | str) -> bytes:
    """SHA-256 of a sample's file.

    Raises:
        UserError: it cannot be read, or is not a regular file.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe may block
            raise UserError(f"{path} is not a regular file: remove it from the data set")
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        raise _unreadable(path, error) from None


def file_hashes(paths: Sequence[str], again: bool = False) -> UInt8[np.ndarray, "files 32"]:
    """SHA-256 of each file, from a file below `LEVELFIELD_CACHE`.

    One process computes hashes while others wait. If they cannot be stored, the next start computes them again.

    Args:
        again: whether to read all files.

    Raises:
        UserError: a file cannot be read.
    """
    found = np.zeros(len(paths), RECORD)
    found["state"] = np.array([(crc32(os.fsencode(path)), *file_state(path)) for path in paths], STATE)
    folder = os.path.commonpath([min(paths), max(paths)]) if len(paths) else ""
    file = cache_root() / "hashes" / f"{hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]}.npy"
    if not again and _known(found, _read(file)).all():
        return found["content"]
    with ExitStack() as held:
        with suppress(FileRefused):
            held.enter_context(locked(file.parent, file.stem, f"SHA-256 of the files in {folder}"))
        kept = _read(file)
        missing = np.flatnonzero(~_known(found, kept) | again)
        if len(missing) > MANY:
            print(f"computing the SHA-256 of {len(missing):,} samples in {folder} once", file=sys.stderr)
        parts = [missing[first : first + AT_A_TIME].tolist() for first in range(0, len(missing), AT_A_TIME)]
        with ThreadPoolExecutor() as pool:
            hashes = b"".join(pool.map(lambda part: b"".join(file_hash(paths[i]) for i in part), parts))
        found["content"][missing] = np.frombuffer(hashes, np.uint8).reshape(-1, 32)
        records = np.concatenate([kept[~np.isin(kept["state"]["path"], found["state"]["path"])], found])
        with suppress(FileRefused), explain_write_errors(file), replaced(file) as opened:
            np.save(opened, records[np.argsort(_as_bytes(records), kind="stable")])
        return found["content"]


def _known(found: np.ndarray, kept: np.ndarray) -> Bool[np.ndarray, " files"]:
    """Copy the kept records of equal states into `found`; returns where."""
    if not len(kept):
        return np.zeros(len(found), bool)
    wanted, there = _as_bytes(found), _as_bytes(kept)
    at = np.minimum(np.searchsorted(there, wanted), len(kept) - 1)
    known = there[at] == wanted
    found[known] = kept[at[known]]
    return known


def _as_bytes(records: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(records["state"]).view(f"S{STATE.itemsize}")


def _read(file: Path) -> np.ndarray:
    with suppress(OSError, ValueError, EOFError):  # missing or damaged
        kept: np.ndarray = np.load(file, allow_pickle=False)
        if kept.dtype == RECORD:
            return kept
    return np.empty(0, RECORD)


def _unreadable(path: Path | str, error: OSError) -> UserError:
    return UserError(f"cannot read {path} ({error.strerror}): restore the file or remove it from the data set")
