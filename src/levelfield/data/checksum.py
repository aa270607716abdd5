"""Check downloaded files by their SHA-256."""

from pathlib import Path

from levelfield.data.datasets.archives import Archive, BadArchive
from levelfield.storage.file_hash import file_hash


def check(file: Path, archive: Archive, folder: Path) -> str:
    """Compare a file's SHA-256 with the published or recorded one, and describe the result.

    Raises:
        BadArchive: they differ.
    """
    digest = file_hash(file)
    if archive.sha256 is not None:
        if digest != archive.sha256:
            raise BadArchive(
                f"{file} has the SHA-256 {digest} instead of {archive.sha256}: "
                "it is damaged or another file; delete it and download it again"
            )
        return "SHA-256 as published"
    recorded = _record_file(archive, folder)
    if not recorded.exists():
        return f"unverified: there is no published checksum; {recorded.name} records this one"
    first = recorded.read_text().partition(" ")[0]
    if digest != first:
        raise BadArchive(
            f"{file} has the SHA-256 {digest}, but {recorded} recorded {first} the first time: "
            f"delete the file and download it again, or delete {recorded.name} if the publishers changed it"
        )
    return f"unverified: the same file as the first time ({recorded.name})"


def record(file: Path, archive: Archive, folder: Path) -> None:
    """Record the SHA-256 of a sound file if none is published, in the format of `sha256sum --check`."""
    if archive.sha256 is None:
        _record_file(archive, folder).write_text(f"{file_hash(file)}  {archive.file}\n")


def _record_file(archive: Archive, folder: Path) -> Path:
    return folder / f"{archive.file}.sha256"
