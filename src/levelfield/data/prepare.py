"""Prepare a named data set: download its files, check and unpack them."""

import shutil
import socket
import sys
import tarfile
from collections.abc import Callable, Sequence
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile, is_zipfile

from torch.hub import download_url_to_file

from levelfield.core.errors import UserError, refused_file
from levelfield.core.files import file_hash, locked
from levelfield.core.paths import cache_root
from levelfield.data.dataset import Archive, MetricDataset

TIMEOUT = 60.0  # seconds without data


def prepare(dataset: MetricDataset, root: Path, given: Sequence[Path], tell: Callable[[str], None]) -> None:
    """Download and unpack missing files into `root/<name>/`, in one process at a time.

    A file with a wrong SHA-256 counts as missing; an unpacked folder is not checked. Each file is downloaded and
    unpacked in a temporary folder there, and renamed once it is complete. A file in `given` stays where it is.

    Args:
        root: the folder of named data sets; created if missing.
        given: files that the user has downloaded, with their original names.
        tell: called with each line for the user.

    Raises:
        UserError: a file that the user must download, a failed download, a wrong checksum, or a file that cannot be
            unpacked. It names the file and another way to get it.
        OSError: the disk is full, or the permission is missing.
    """
    folder = root / (dataset.folder_name or dataset.name)
    if not (missing := _missing(dataset, folder)):
        return
    by_name = {file.name: file for file in given}
    wanted = [archive.file for archive in missing]
    for name, file in by_name.items():
        if not file.is_file():
            raise UserError(f"--archive {file}: no such file")
        if name not in wanted:
            names = " and ".join(wanted)
            raise UserError(f"--archive {file}: {dataset.name} needs {names}; rename the file if it is one of these")
    waiting = [archive.file for archive in missing if not archive.url and archive.file not in by_name]
    if waiting:
        raise UserError(
            f"{dataset.name}: download {' and '.join(waiting)} yourself, because the terms need your agreement: "
            f"{dataset.source}; then run levelfield data prepare {dataset.name} "
            f"{' '.join(f'--archive {file}' for file in waiting)}"
        )
    with locked(cache_root(), f"prepare-{folder.name}", f"data prepare {dataset.name}"):
        folder.mkdir(parents=True, exist_ok=True)
        for archive in _missing(dataset, folder):  # another process may have prepared some
            with TemporaryDirectory(prefix=".prepare-", dir=folder) as aside:
                _prepare_file(dataset, archive, by_name.get(archive.file), Path(aside), tell)


def _missing(dataset: MetricDataset, folder: Path) -> list[Archive]:
    return [archive for archive in dataset.archives if not _is_sound(archive, folder / archive.place)]


def _is_sound(archive: Archive, place: Path) -> bool:
    if archive.gives or archive.sha256 is None or not place.is_file():
        return place.exists()
    return file_hash(place) == archive.sha256


def _prepare_file(
    dataset: MetricDataset, archive: Archive, given: Path | None, aside: Path, tell: Callable[[str], None]
) -> None:
    """Download, check and unpack one archive in the folder `aside`, and rename the result into the folder around it."""
    remedy = (
        f"get {archive.file} from {dataset.source}{f' or {archive.url}' if archive.url else ''} and run "
        f"levelfield data prepare {dataset.name} --archive {archive.file}"
    )
    file = given or _download(archive, aside, remedy, tell)
    origin, digest = given or archive.url, file_hash(file)
    if archive.sha256 not in (None, digest):
        raise UserError(
            f"{origin} has the SHA-256 {digest} instead of {archive.sha256}, it is damaged or another file: {remedy}"
        )
    if archive.gives:
        tell(f"  {archive.file}: unpacking")
        file = _unpack(file, aside / "unpacked", origin, remedy) / archive.gives
        if not file.exists():
            raise UserError(f"{origin} has no {archive.gives}: {remedy}")
    elif given:
        file = Path(shutil.copyfile(given, aside / archive.file))
    place = aside.parent / archive.place
    if not (archive.gives and place.exists()):  # a process on another machine may be first
        file.replace(place)
    tell(f"  {archive.file}: SHA-256 {'as published' if archive.sha256 else f'{digest}, unverified: none published'}")


def _download(archive: Archive, aside: Path, remedy: str, tell: Callable[[str], None]) -> Path:
    assert archive.url is not None
    tell(f"  {archive.file}: from {archive.url}")
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT)  # torch gives none
    try:
        download_url_to_file(archive.url, str(aside / archive.file), progress=sys.stderr.isatty())
    except (OSError, HTTPException) as error:
        if isinstance(error, OSError) and refused_file(error):  # of the disk
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"cannot download {archive.url} ({reason}): run the command again; or {remedy}") from None
    finally:
        socket.setdefaulttimeout(before)
    return aside / archive.file


def _unpack(file: Path, folder: Path, origin: Path | str | None, remedy: str) -> Path:
    """Unpack a zip or tar file into a new folder. The standard library writes nothing outside it, and no device."""
    try:
        if is_zipfile(file):
            ZipFile(file).extractall(folder)  # `shutil` would skip a file with two dots in a row in its name
        else:
            with tarfile.open(file) as opened:
                opened.extractall(folder, filter="data")
    except Exception as error:  # a damaged file can raise anything
        if isinstance(error, OSError) and error.errno:  # of the disk
            raise
        reason = str(error).partition("\n")[0].rstrip(":") or type(error).__name__  # tarfile writes five lines
        raise UserError(f"cannot unpack {origin} ({reason}): {remedy}") from None
    return folder
