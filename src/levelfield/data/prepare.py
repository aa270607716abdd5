"""Prepare a named data set: download its archives, check and unpack them."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from levelfield.data.checksum import check, record
from levelfield.data.datasets.archives import Archive, BadArchive
from levelfield.data.datasets.base import MetricDataset
from levelfield.data.download import Progress, check_room, fetch
from levelfield.data.extract import unpack
from levelfield.errors import UserError
from levelfield.runtime.cache_root import cache_root
from levelfield.storage.lock import Lock

Tell = Callable[[str], None]
Bar = Callable[[str], AbstractContextManager[Progress]]
"""A progress bar with a caption."""


def prepare(dataset: MetricDataset, root: Path, given: Sequence[Path], tell: Tell, bar: Bar) -> None:
    """Download and unpack missing files into `root/<name>/`, in one process at a time.

    A file with a wrong SHA-256 counts as missing; an unpacked folder is not checked. Downloads go into `.download/`
    there and are removed after unpacking; a file in `given` stays where it is.

    Args:
        root: the folder of named data sets; created if missing.
        given: files that the user has downloaded, with their original names.
        bar: shows the progress of a download or of unpacking, in bytes.

    Raises:
        UserError: a file that the user must download, or an error of `fetch`, `check` or `unpack`.
    """
    folder = root / (dataset.folder_name or dataset.name)
    missing = [archive for archive in dataset.archives if not _is_sound(archive, folder)]
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
        still_missing = [archive for archive in missing if not _is_sound(archive, folder)]
        _prepare(dataset, still_missing, by_hand, folder, tell, bar)


def _prepare(
    dataset: MetricDataset,
    missing: Sequence[Archive],
    by_hand: Mapping[Archive, Path],
    folder: Path,
    tell: Tell,
    bar: Bar,
) -> None:
    arriving = folder / ".download"
    arriving.mkdir(parents=True, exist_ok=True)
    # The unpacked files are at least as large as the archive, and both exist for a while.
    check_room(folder, sum((archive.size or 0) * (2 if archive.gives else 1) for archive in missing))
    for archive in missing:
        file = by_hand.get(archive) or _download(dataset, archive, arriving, tell, bar)
        try:
            result = check(file, archive, folder)
            if archive.gives:
                with bar(f"unpacking {archive.file}") as progress:
                    unpack(file, folder, archive.inside, progress, gives=archive.gives)
        except BadArchive as error:
            if archive in by_hand:
                raise
            file.unlink()
            raise BadArchive(f"{error} (it has been deleted)") from None
        record(file, archive, folder)
        tell(f"  {archive.file}: {result}")
        if not archive.gives:
            if archive in by_hand:
                file = Path(shutil.copyfile(file, arriving / archive.file))
            file.rename(folder / archive.file)
        elif archive not in by_hand:
            file.unlink()
    shutil.rmtree(arriving)


def _is_sound(archive: Archive, folder: Path) -> bool:
    place = folder / archive.place
    if archive.gives or not place.is_file():
        return place.exists()
    try:
        check(place, archive, folder)
    except BadArchive:
        return False
    return True


def _download(dataset: MetricDataset, archive: Archive, arriving: Path, tell: Tell, bar: Bar) -> Path:
    remedy = (
        f"download {archive.file} from {dataset.source} yourself and run "
        f"levelfield data prepare {dataset.name} --archive {archive.file}"
    )
    tell(f"  {archive.file}: from {archive.url}")
    with bar(archive.file) as progress:
        return fetch(archive, arriving, remedy, progress)


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
