"""Download a file over HTTP: a file has its name only if it is complete."""

import os
import shutil
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
TIMEOUT = 60.0  # seconds without data


def fetch(archive: Archive, folder: Path, remedy: str, progress: Progress) -> Path:
    """The file of an archive in `folder`.

    Args:
        remedy: another way to get the file, for messages.

    Raises:
        UserError: no network, no such file, no space, or a transfer that stops.
    """
    file, part = folder / archive.file, folder / f"{archive.file}.part"
    if not file.exists():
        try:
            _transfer(archive, part, remedy, progress)
            os.replace(part, file)
        finally:
            part.unlink(missing_ok=True)
    return file


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
    assert archive.url is not None
    have = 0
    with _open(archive.url, remedy) as response:
        length = response.headers.get("Content-Length")
        total = int(length) if length and length.isdecimal() else None
        if archive.size is not None and total is not None and total != archive.size:
            raise UserError(
                f"{archive.url} has {total:,} bytes instead of {archive.size:,}, it is another file: {remedy}"
            )
        check_room(part.parent, total or 0)
        try:
            with part.open("wb") as file:
                while chunk := _read(archive.url, response, remedy):
                    file.write(chunk)
                    have += len(chunk)
                    progress(have, total)
        except OSError as error:
            raise UserError(f"cannot write {part} ({error.strerror}): free space or give another --root") from None
    if total is not None and have < total:
        raise _stopped(archive.url, f"{have:,} of {total:,} bytes arrived", remedy)


def _open(url: str, remedy: str) -> HTTPResponse:
    headers = {"User-Agent": f"levelfield/{__version__}", "Accept-Encoding": "identity"}
    try:
        return urlopen(Request(url, headers=headers), timeout=TIMEOUT)
    except HTTPError as error:
        error.close()
        raise UserError(f"cannot download {url} (HTTP {error.code} {error.reason}): {remedy}") from None
    except (URLError, OSError, HTTPException) as error:
        reason, host = getattr(error, "reason", None) or error, urlsplit(url).netloc
        raise UserError(f"cannot reach {host} ({reason}): check the network and run it again; or {remedy}") from None


def _read(url: str, response: HTTPResponse, remedy: str) -> bytes:
    try:
        return response.read(CHUNK)
    except (OSError, HTTPException) as error:
        raise _stopped(url, error, remedy) from None


def _stopped(url: str, reason: object, remedy: str) -> UserError:
    return UserError(f"{url} stopped ({reason}): run the command again; or {remedy}")
