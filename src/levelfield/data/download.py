"""Download a file over HTTP: a stopped transfer starts again, and a file has its final name only if it is complete."""

import os
import shutil
import time
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from levelfield import __version__
from levelfield.data.datasets.archives import Archive
from levelfield.errors import UserError

Progress = Callable[[int, int | None], None]
"""Called with the bytes so far and all bytes, if known."""

CHUNK = 1 << 20
ATTEMPTS = 5
TIMEOUT = 60.0  # seconds without data


class _StoppedError(Exception):
    """The transfer stopped; another attempt may succeed."""


def fetch(archive: Archive, folder: Path, remedy: str, progress: Progress, pause: float = 2.0) -> Path:
    """The file of an archive in `folder`.

    Args:
        remedy: another way to get the file, for messages.
        pause: seconds before the second attempt; doubled for each further attempt.

    Raises:
        UserError: no network, no such file, no space, or a transfer that keeps stopping.
    """
    assert archive.url is not None
    file, part = folder / archive.file, folder / f"{archive.file}.part"
    if file.exists():
        return file
    reason = ""
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(pause * 2 ** (attempt - 1))
        try:
            _transfer(archive, part, remedy, progress)
            os.replace(part, file)
            return file
        except _StoppedError as error:
            reason = str(error)
    part.unlink(missing_ok=True)
    raise UserError(f"{archive.url} stopped {ATTEMPTS} times ({reason}): {remedy}")


def check_room(folder: Path, needed: int) -> None:
    """Raise an error if the disk is too small.

    Raises:
        UserError: names the needed and the free space.
    """
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"{folder} has {as_size(free)} free, but {as_size(needed)} are needed: free space or give another --root"
        )


def as_size(size: float) -> str:
    """Bytes in a readable unit."""
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:,.2f} GiB"


def _transfer(archive: Archive, part: Path, remedy: str, progress: Progress) -> None:
    """Download `part`.

    Raises:
        _StoppedError: the transfer stopped.
        UserError: another attempt would fail the same way.
    """
    have = 0
    with _open(archive, remedy) as response:
        length = response.headers.get("Content-Length")
        total = int(length) if length and length.isdecimal() else None
        if archive.size is not None and total is not None and total != archive.size:
            raise UserError(
                f"{archive.url} has {total:,} bytes instead of {archive.size:,}, it is another file: {remedy}"
            )
        check_room(part.parent, total or 0)
        try:
            with part.open("wb") as file:
                while chunk := _read(response):
                    file.write(chunk)
                    have += len(chunk)
                    progress(have, total)
        except OSError as error:
            raise UserError(f"cannot write {part} ({error.strerror}): free space or give another --root") from None
    if total is not None and have < total:
        raise _StoppedError(f"{have:,} of {total:,} bytes arrived")


def _open(archive: Archive, remedy: str) -> HTTPResponse:
    assert archive.url is not None
    headers = {"User-Agent": f"levelfield/{__version__}", "Accept-Encoding": "identity"}
    try:
        return urlopen(Request(archive.url, headers=headers), timeout=TIMEOUT)
    except HTTPError as error:
        error.close()
        if error.code >= 500 or error.code == 429:
            raise _StoppedError(f"HTTP {error.code} {error.reason}") from None
        raise UserError(f"cannot download {archive.url} (HTTP {error.code} {error.reason}): {remedy}") from None
    except (URLError, OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        if isinstance(reason, TimeoutError | ConnectionResetError | HTTPException):
            raise _StoppedError(str(reason)) from None
        host = urlsplit(archive.url).netloc
        raise UserError(f"cannot reach {host} ({reason}): check the network and run it again; or {remedy}") from None


def _read(response: HTTPResponse) -> bytes:
    try:
        return response.read(CHUNK)
    except (OSError, HTTPException) as error:
        raise _StoppedError(str(error)) from None
