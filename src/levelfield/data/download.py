"""Fetching a file over HTTP: it goes on where it stopped, is checked, and has its name only when it is whole.

By hand, for neither urllib nor `torch.hub.download_url_to_file` goes on where a transfer of gigabytes stopped.
"""

import os
import re
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
"""Called with the bytes that are there and the bytes in all, where these are known."""

CHUNK = 1 << 20
ATTEMPTS = 5
TIMEOUT = 60.0  # seconds without a byte


class _StoppedError(Exception):
    """The transfer stopped; another attempt may go on."""


def fetch(archive: Archive, folder: Path, remedy: str, progress: Progress, pause: float = 2.0) -> Path:
    """The file of an archive in `folder`; what an earlier call left in `<file>.part` is not fetched again.

    Args:
        remedy: how to come by the file otherwise; ends each message.
        pause: seconds before the second attempt; twice as many before each further one.

    Raises:
        UserError: no network, no such file, no room, or a transfer that keeps stopping.
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
            _validator_file(part).unlink(missing_ok=True)
            return file
        except _StoppedError as error:
            reason = str(error)
    there = part.stat().st_size if part.exists() else 0
    raise UserError(
        f"{archive.url} stopped after {there:,} bytes ({reason}): run the command again, it goes on there; or {remedy}"
    )


def check_room(folder: Path, needed: int) -> None:
    """Refuse to begin what the disk cannot hold.

    Raises:
        UserError: naming what is needed and what is there.
    """
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"{folder} has {as_size(free)} free and {as_size(needed)} are needed: make room or give another --root"
        )


def as_size(size: float) -> str:
    """Bytes in the unit a person would use."""
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:,.2f} GiB"


def _transfer(archive: Archive, part: Path, remedy: str, progress: Progress) -> None:
    """Fetch what `part` lacks.

    Raises:
        _StoppedError: the transfer stopped.
        UserError: another attempt would fail the same way.
    """
    have = part.stat().st_size if part.exists() else 0
    response = _open(archive, part, have, remedy)
    if response is None:
        return
    with response:
        resumed = response.status == 206
        if resumed and not (response.headers.get("Content-Range") or "").startswith(f"bytes {have}-"):
            part.unlink()
            raise _StoppedError("the server went on somewhere else")
        have = have if resumed else 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length and length.isdecimal() else None
        if archive.size is not None and total is not None and total != archive.size:
            raise UserError(f"{archive.url} is {total:,} bytes instead of {archive.size:,}, another file: {remedy}")
        check_room(part.parent, (total or 0) - have)
        validator = response.headers.get("ETag") or response.headers.get("Last-Modified")
        if validator and not validator.startswith("W/"):  # a weak one does not promise the same bytes
            _validator_file(part).write_text(validator)
        try:
            with part.open("ab" if resumed else "wb") as file:
                while chunk := _read(response):
                    file.write(chunk)
                    have += len(chunk)
                    progress(have, total)
        except OSError as error:
            raise UserError(f"cannot write {part} ({error.strerror}): make room or give another --root") from None
    if total is not None and have < total:
        raise _StoppedError(f"{have:,} of {total:,} bytes came")


def _open(archive: Archive, part: Path, have: int, remedy: str) -> HTTPResponse | None:
    """The answer of the server, from byte `have` on where it can; None where there is nothing left to fetch."""
    assert archive.url is not None
    headers = {"User-Agent": f"levelfield/{__version__}", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
        if _validator_file(part).exists():
            headers["If-Range"] = _validator_file(part).read_text()
    try:
        return urlopen(Request(archive.url, headers=headers), timeout=TIMEOUT)
    except HTTPError as error:
        error.close()
        if error.code == 416:
            whole = re.fullmatch(r"bytes \*/(\d+)", error.headers.get("Content-Range") or "")
            if whole and int(whole[1]) == have:
                return None
            part.unlink()
            raise _StoppedError("the file has changed") from None
        if error.code >= 500 or error.code == 429:
            raise _StoppedError(f"HTTP {error.code} {error.reason}") from None
        raise UserError(f"{archive.url} is not to be had (HTTP {error.code} {error.reason}): {remedy}") from None
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


def _validator_file(part: Path) -> Path:
    """What tells the server which version of its file the part belongs to."""
    return part.with_name(f"{part.name}.version")
