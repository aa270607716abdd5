"""Prepare a named data set: download its files, check and unpack them."""

import shutil
import socket
import sys
import tarfile
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile, is_zipfile

from torch.hub import download_url_to_file

from levelfield.core.errors import UserError, refused_file
from levelfield.core.files import Lock, file_hash
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
        UserError: a file that the user must download, a failed download, a wrong checksum, a file that cannot be
            unpacked, or too little space. It names the file and another way to get it.
        OSError: the disk is full, or the permission is missing.
    """
    folder = root / (dataset.folder_name or dataset.name)
    missing = _missing(dataset, folder)
    if not missing:
        return
    by_hand = _match(dataset, missing, given)
    waiting = [archive.file for archive in missing if archive.url is None and archive not in by_hand]
    if waiting:
        raise UserError(
            f"{dataset.name}: download {' and '.join(waiting)} yourself, because the terms need your agreement: "
            f"{dataset.source}; then run levelfield data prepare {dataset.name} "
            f"{' '.join(f'--archive {file}' for file in waiting)}"
        )
    with Lock(cache_root(), f"prepare-{folder.name}", f"data prepare {dataset.name}"):
        missing = _missing(dataset, folder)  # another process may have prepared some
        folder.mkdir(parents=True, exist_ok=True)
        # The unpacked files are at least as large as the archive, and both exist for a while.
        needed = sum((archive.size or 0) * (2 if archive.gives else 1) for archive in missing)
        if needed > (free := shutil.disk_usage(folder).free):
            raise UserError(
                f"{folder} has {free / 1e9:,.1f} GB free, but {needed / 1e9:,.1f} GB are needed: free space or give "
                "another --root"
            )
        for archive in missing:
            with TemporaryDirectory(prefix=".prepare-", dir=folder) as aside:
                _prepare_file(dataset, archive, by_hand.get(archive), folder, Path(aside), tell)


def _missing(dataset: MetricDataset, folder: Path) -> list[Archive]:
    return [archive for archive in dataset.archives if not _is_sound(archive, folder)]


def _is_sound(archive: Archive, folder: Path) -> bool:
    place = folder / archive.place
    if archive.gives or not place.is_file():
        return place.exists()
    return _checksum(archive, folder) in (None, file_hash(place))


def _checksum(archive: Archive, folder: Path) -> str | None:
    """The published SHA-256, or the one of the first time."""
    recorded = _record_file(archive, folder)
    return archive.sha256 or (recorded.read_text().partition(" ")[0] if recorded.exists() else None)


def _record_file(archive: Archive, folder: Path) -> Path:
    return folder / f"{archive.file}.sha256"


def _prepare_file(
    dataset: MetricDataset,
    archive: Archive,
    given: Path | None,
    folder: Path,
    aside: Path,
    tell: Callable[[str], None],
) -> None:
    command = f"curl --location --continue-at - --output {archive.file} '{archive.url}'"
    remedy = (
        f"get {archive.file} from {dataset.source}{f' (or by {command})' if archive.url else ''} and run "
        f"levelfield data prepare {dataset.name} --archive {archive.file}"
    )
    file = given or _download(archive, aside, remedy, tell)
    origin, digest, expected = given or archive.url, file_hash(file), _checksum(archive, folder)
    recorded = _record_file(archive, folder)
    if expected not in (None, digest):
        changed = "" if archive.sha256 else f"; or delete {recorded} if the publishers changed the file"
        raise UserError(
            f"{origin} has the SHA-256 {digest} instead of {expected}, it is damaged or another file: {remedy}{changed}"
        )
    whole = file
    if archive.gives:
        tell(f"  {archive.file}: unpacking")
        whole = _unpack(file, aside / "unpacked", origin, remedy) / archive.inside / archive.gives
        if not whole.exists():
            raise UserError(f"{origin} has no {archive.gives}: {remedy}")
    elif given:
        whole = Path(shutil.copyfile(file, aside / archive.file))
    result = "SHA-256 as published"
    if archive.sha256 is None:
        result = f"unverified: the same file as the first time ({recorded.name})"
        if expected is None:
            recorded.write_text(f"{digest}  {archive.file}\n")  # as `sha256sum --check` reads it
            result = f"unverified: there is no published checksum; {recorded.name} records this one"
    if not (archive.gives and (folder / archive.place).exists()):  # a process on another machine may be first
        whole.replace(folder / archive.place)
    tell(f"  {archive.file}: {result}")


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
            with ZipFile(file) as opened_zip:
                opened_zip.extractall(folder)
        elif not hasattr(tarfile, "data_filter"):
            raise UserError(f"{origin}: Python needs 3.11.4 or newer to unpack a tar file safely")
        else:
            with tarfile.open(file) as opened_tar:
                opened_tar.extractall(folder, filter="data")
    except UserError:
        raise
    except Exception as error:  # a damaged file can raise anything
        if isinstance(error, OSError) and error.errno:  # of the disk
            raise
        reason = str(error).partition("\n")[0].rstrip(":") or type(error).__name__  # tarfile writes five lines
        raise UserError(f"cannot unpack {origin} ({reason}): {remedy}") from None
    return folder


def _match(dataset: MetricDataset, missing: Sequence[Archive], given: Sequence[Path]) -> Mapping[Archive, Path]:
    """Match given files to missing archives: by name, or a single file to the only missing archive."""
    matched: dict[Archive, Path] = {}
    for file in given:
        if not file.is_file():
            raise UserError(f"--archive {file}: no such file")
        named = [archive for archive in missing if archive.file == file.name]
        if not named and len(given) == len(missing) == 1:
            named = list(missing)
        if not named:
            wanted = " and ".join(archive.file for archive in missing)
            raise UserError(f"--archive {file}: {dataset.name} needs {wanted}; rename the file if it is one of these")
        matched[named[0]] = file
    return matched
