"""Unpack a zip or tar file safely: only regular files, inside one folder, all or nothing.

The standard library is not enough: zipfile renames what tarfile's `filter="data"` rejects, that filter accepts links
and strips the root of a path, and neither has a size limit.
"""

import re
import shutil
import stat
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple
from zipfile import BadZipFile, ZipFile, is_zipfile

from levelfield.data.datasets.archives import BadArchive
from levelfield.data.download import CHUNK, Progress, as_size, check_room
from levelfield.errors import UserError

# An archive that unpacks to more than this multiple of its size is a zip bomb: images hardly shrink, texts to a tenth.
MOST_TIMES = 100
# Any archive may unpack to this many bytes: runs of zeros shrink to a thousandth.
ALWAYS_ALLOWED = 64 << 20
BLOCK = 4096  # smallest space of a file on disk
DAMAGE = (tarfile.TarError, BadZipFile, EOFError, zlib.error, LZMAError)
AES = 99  # zip's number for encryption, in the field of the compression


class _Member(NamedTuple):
    name: str
    kind: str
    size: int
    open: Callable[[], IO[bytes] | None]


def unpack(
    archive: Path,
    folder: Path,
    inside: str,
    progress: Progress,
    always_allowed: int = ALWAYS_ALLOWED,
    gives: str = "",
) -> None:
    """Unpack `archive` into `folder` without overwriting anything.

    Args:
        archive: a zip file, or a tar file, compressed or not.
        inside: unpack only this folder of the archive, without its name; "" unpacks everything.
        always_allowed: bytes that any archive may unpack to.
        gives: the file or folder that the archive must contain.

    Raises:
        BadArchive: an incomplete archive, or one that unpacks to more than a hundred times its size; a member with an
            absolute path or `..`, a link, a device, or a file with an encryption or compression that Python does not
            know.
        UserError: a name exists in `folder`, or there is no space. After any error, no file is left behind.
    """
    aside = folder / f".{archive.name}.unpacking"
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir()
        if is_zipfile(archive):
            with ZipFile(archive) as opened_zip:
                check_room(folder, sum(member.file_size for member in opened_zip.infolist()))
                _write(archive, _zip_members(opened_zip), aside, inside, progress, always_allowed)
        else:
            with tarfile.open(archive) as opened_tar:
                _write(archive, _tar_members(opened_tar), aside, inside, progress, always_allowed)
        if not (aside / gives).exists():
            raise BadArchive(f"{archive} has no {gives}: download the archive from its publishers")
        entries = sorted(aside.iterdir())
        for entry in entries:
            if (folder / entry.name).exists():
                raise UserError(f"{folder / entry.name} already exists: move it away to unpack {archive} again")
        for entry in entries:
            entry.rename(folder / entry.name)
    except UserError:
        raise
    except NotImplementedError as error:
        reason = str(error).partition("\n")[0]
        raise BadArchive(
            f"{archive} has an unknown compression or encryption ({reason}): unpack it with another program and pack "
            "it again"
        ) from None
    # For a hostile file the two modules raise other errors too, e.g. for names that are not text.
    except (*DAMAGE, ValueError, struct.error, RecursionError) as error:
        reason = str(error).partition("\n")[0].rstrip(":") or type(error).__name__  # tarfile writes five lines
        raise BadArchive(f"{archive} is {_nature(archive)} ({reason}): delete it and download it again") from None
    except OSError as error:
        raise UserError(f"cannot unpack {archive} ({error.strerror or error}): fix that and run it again") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _write(
    archive: Path, members: Iterator[_Member], folder: Path, inside: str, progress: Progress, always_allowed: int
) -> None:
    written, taken = 0, 0
    most = max(always_allowed, MOST_TIMES * archive.stat().st_size)
    for member in members:
        taken += max(member.size, BLOCK)
        if taken > most:
            raise BadArchive(
                f"{archive} ({as_size(archive.stat().st_size)}) unpacks to more than {as_size(most)}: rejected; "
                "download the archive from its publishers"
            )
        path = _relative(archive, member)
        if inside and not path.is_relative_to(inside):
            continue
        check_room(folder, member.size)
        target = folder / (path.relative_to(inside) if inside else path)
        if member.kind == "folder":
            target.mkdir(parents=True, exist_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        source = member.open()
        assert source is not None
        with source, target.open("wb") as file:
            shutil.copyfileobj(source, file, CHUNK)
        written += member.size
        progress(written, None)


def _relative(archive: Path, member: _Member) -> PurePosixPath:
    """The relative path of a member; raises BadArchive for an unsafe member."""
    if member.kind not in ("file", "folder"):
        raise BadArchive(
            f"{archive} contains a {member.kind}, {member.name}: rejected; download the archive from its publishers"
        )
    name = member.name
    if re.match(r"[/\\]|[A-Za-z]:", name) or ".." in re.split(r"[/\\]", name):
        raise BadArchive(
            f"{archive} writes outside its folder, to {name}: rejected; download the archive from its publishers"
        )
    return PurePosixPath(name)


def _zip_members(opened: ZipFile) -> Iterator[_Member]:
    for info in opened.infolist():
        # Programs without modes write 0.
        mode = stat.S_IFMT(info.external_attr >> 16)
        kind = {0: "file", stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}.get(mode, "device")
        if info.flag_bits & 1 or info.compress_type == AES:
            kind = "file with a password"
        elif info.is_dir():
            kind = "folder"
        yield _Member(info.filename, kind, info.file_size, partial(opened.open, info))


def _tar_members(opened: tarfile.TarFile) -> Iterator[_Member]:
    for info in opened:
        if info.isfile():
            kind = "file"
        elif info.isdir():
            kind = "folder"
        else:
            kind = "link" if info.issym() or info.islnk() else "device"
        yield _Member(info.name, kind, info.size, partial(opened.extractfile, info))


def _nature(archive: Path) -> str:
    with archive.open("rb") as file:
        start = file.read(512).lstrip().lower()
    if start.startswith((b"<!doctype", b"<html")):
        return "a web page instead of an archive"
    return "not a complete zip or tar file"
