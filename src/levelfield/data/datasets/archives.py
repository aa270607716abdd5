"""The published files of a named data set, with checksums."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Archive:
    """A published file of a data set.

    Attributes:
        file: name of the file.
        gives: the file or folder to unpack; None for a file that is not unpacked.
        url: download address; None if the publishers require an agreement or a login.
        size: in bytes; None if unknown.
        sha256: None if unknown: then the SHA-256 of the first download is recorded, as unverified.
        inside: the folder of the archive that has `gives`.
    """

    file: str
    gives: str | None = None
    url: str | None = None
    size: int | None = None
    sha256: str | None = None
    inside: str = ""

    @property
    def place(self) -> str:
        """The file or folder that the data set reads."""
        return self.gives or self.file
