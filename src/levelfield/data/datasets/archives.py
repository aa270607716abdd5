"""What a named data set is published as: files to fetch, with their checksums."""

from dataclasses import dataclass

from levelfield.errors import UserError


class BadArchive(UserError):  # noqa: N818  # it says what the file is
    """A file that is damaged, another one than was meant, or hostile: to be fetched anew."""


@dataclass(frozen=True)
class Archive:
    """A file that a data set comes in, as its publishers offer it.

    Attributes:
        file: its name.
        gives: what lies in the data set's folder once the file is unpacked; None for a file that is used as it is.
        url: where it is fetched; None where its publishers ask for an agreement or a sign-in first.
        size: in bytes; None where it is not known with certainty.
        sha256: None where it is not known with certainty: the first file fetched is then recorded, and called
            unverified.
        inside: the folder of the archive that is taken, without its own name; "" takes everything.
    """

    file: str
    gives: str | None = None
    url: str | None = None
    size: int | None = None
    sha256: str | None = None
    inside: str = ""

    @property
    def place(self) -> str:
        """What the data set reads, in its folder."""
        return self.gives or self.file
