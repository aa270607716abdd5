"""The published files of a named data set, with checksums."""

from dataclasses import dataclass

from levelfield.errors import UserError


class BadArchive(UserError):  # noqa: N818  # the name says what the file is
    """A damaged, wrong or hostile file: download it again."""


@dataclass(frozen=True)
class Archive:
    """A published file of a data set.

    Attributes:
        file: name of the file.
        gives: the file or folder that unpacking creates; None for a file that is not unpacked.
        url: download address; None if the publishers require an agreement or a login.
        size: in bytes; None if unknown.
        sha256: None if unknown: then the SHA-256 of the first download is recorded, as unverified.
        inside: unpack only this folder of the archive, without its name; "" unpacks everything.
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
