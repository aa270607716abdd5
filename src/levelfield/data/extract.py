"""Unpacking a zip or tar file that somebody else made: regular files alone, inside one folder, all or nothing.

By hand, for zipfile renames what tarfile's `filter="data"` refuses, that filter takes links and strips the root of a
path, and neither has a limit of size.
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

# An archive that unpacks to more than so many times its own size is a bomb: pictures hardly shrink, texts to a tenth.
MOST_TIMES = 100
# Small archives may say that much; zeros in a row, for one, shrink to a thousandth.
ALWAYS_ALLOWED = 64 << 20
BLOCK = 4096  # what a file takes on a disk, however empty
DAMAGE = (tarfile.TarError, BadZipFile, EOFError, zlib.error, LZMAError)
AES = 99  # zip's number for it, in the place of a compression's


class _Member(NamedTuple):
    name: str
    kind: str
    size: int
    open: Callable[[], IO[bytes] | None]


def unpack(archive: Path, folder: Path, inside: str, progress: Progress, always_allowed: int = ALWAYS_ALLOWED) -> None:
    """Unpack `archive` into `folder`, which it adds to: nothing that is there already is written over.

    Args:
        archive: a zip file, or a tar file, compressed or not.
        inside: the folder of the archive that is taken, without its own name; "" takes everything.
        always_allowed: bytes that it may unpack to, however small it is.

    Raises:
        BadArchive: a file that is no whole archive, or unpacks to more than a hundred times its size; a member with an
            absolute path or `..` in it, a link, a device, or a file that is encrypted or compressed in a way that
            Python does not know.
        UserError: something in `folder` has the same name, or there is no room. Nothing is left behind either way.
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
        entries = sorted(aside.iterdir())
        for entry in entries:
            if (folder / entry.name).exists():
                raise UserError(f"{folder / entry.name} is there already: move it away to unpack {archive} again")
        for entry in entries:
            entry.rename(folder / entry.name)
    except UserError:
        raise
    except NotImplementedError as error:
        reason = str(error).partition("\n")[0]
        raise BadArchive(
            f"{archive} is compressed or encrypted in a way that is not read here ({reason}): unpack it with another "
            "program and pack it again"
        ) from None
    # On a hostile file the two modules fail in ways of their own: a name that is no text, a number that is none.
    except (*DAMAGE, ValueError, struct.error, RecursionError) as error:
        reason = str(error).partition("\n")[0].rstrip(":") or type(error).__name__  # tarfile writes five lines
        raise BadArchive(f"{archive} is {_nature(archive)} ({reason}): delete it and fetch it again") from None
    except OSError as error:
        raise UserError(f"cannot unpack {archive} ({error.strerror or error}): mend that and run it again") from None
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
                f"{archive} ({as_size(archive.stat().st_size)}) unpacks to more than {as_size(most)}: refused; fetch "
                "the archive from its publishers"
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
    """Where a member goes, if it goes anywhere."""
    if member.kind not in ("file", "folder"):
        raise BadArchive(
            f"{archive} holds a {member.kind}, {member.name}: refused; fetch the archive from its publishers"
        )
    name = member.name
    if re.match(r"[/\\]|[A-Za-z]:", name) or ".." in re.split(r"[/\\]", name):
        raise BadArchive(
            f"{archive} writes outside its folder, to {name}: refused; fetch the archive from its publishers"
        )
    return PurePosixPath(name)


def _zip_members(opened: ZipFile) -> Iterator[_Member]:
    for info in opened.infolist():
        # A mode of 0 is what programs write that know none.
        mode = stat.S_IFMT(info.external_attr >> 16)
        kind = {0: "file", stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}.get(mode, "device")
        if info.flag_bits & 1 or info.compress_type == AES:
            kind = "file under a password"
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
    return "not a whole zip or tar file"
