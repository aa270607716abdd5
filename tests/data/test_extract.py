"""Unpacking archives that somebody else made: what is safe is unpacked, what is not is refused with nothing left."""

from __future__ import annotations

import gzip
import io
import shutil
import stat
import tarfile
import zipfile
from pathlib import Path
from zipfile import ZipFile, ZipInfo

import pytest

from levelfield.data.extract import unpack
from levelfield.errors import UserError

BYTES = b"a picture of a jay" * 1000


def zipped(path: Path, members: dict[str, bytes], mode: int = 0) -> Path:
    with ZipFile(path, "w") as archive:
        for name, content in members.items():
            info = ZipInfo(name)
            info.external_attr = mode << 16
            archive.writestr(info, content)
    return path


def tarred(path: Path, members: dict[str, bytes], kind: bytes = tarfile.REGTYPE, points_to: str = "") -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, points_to
            info.size = len(content) if kind == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(content))
    return path


def unpacked(archive: Path, folder: Path, inside: str = "") -> dict[str, bytes]:
    folder.mkdir(exist_ok=True)
    unpack(archive, folder, inside, lambda done, total: None)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_files_and_folders_come_out_as_they_are(pack, tmp_path: Path) -> None:
    members = {"birds/a jay/1.jpg": BYTES, "./birds/zaunkönig 🐦.JPG": b"wren", "birds/empty": b""}
    found = unpacked(pack(tmp_path / "birds.archive", members), tmp_path / "out")
    assert found == {name.removeprefix("./"): content for name, content in members.items()}
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["birds"]


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_one_folder_of_the_archive(pack, tmp_path: Path) -> None:
    archive = pack(tmp_path / "a", {"repo-main/data/1.jpg": b"1", "repo-main/code.py": b"", "README": b""})
    assert unpacked(archive, tmp_path / "out", inside="repo-main/data") == {"1.jpg": b"1"}


@pytest.mark.parametrize(
    "name", ["../outside", "birds/../../outside", "/tmp/outside", "\\outside", "C:\\outside", "a\\..\\..\\outside"]
)
def test_a_path_to_the_outside_is_refused(name: str, tmp_path: Path) -> None:
    for pack in (zipped, tarred):
        archive = pack(tmp_path / "evil", {"birds/1.jpg": b"1", name: b"evil"})
        folder = tmp_path / "deep" / "out"
        folder.mkdir(parents=True, exist_ok=True)
        with pytest.raises(UserError, match=r"evil writes outside its folder, to .*outside: rejected"):
            unpacked(archive, folder)
        assert sorted(path.name for path in tmp_path.rglob("*")) == ["deep", "evil", "out"]


@pytest.mark.parametrize(
    ("kind", "mode", "word"),
    [
        (tarfile.SYMTYPE, stat.S_IFLNK, "link"),
        (tarfile.LNKTYPE, stat.S_IFLNK, "link"),
        (tarfile.CHRTYPE, stat.S_IFCHR, "device"),
        (tarfile.BLKTYPE, stat.S_IFBLK, "device"),
        (tarfile.FIFOTYPE, stat.S_IFIFO, "device"),
    ],
)
def test_links_and_devices_are_refused(kind: bytes, mode: int, word: str, tmp_path: Path) -> None:
    for archive in (
        tarred(tmp_path / "evil.tgz", {"birds/passwd": b""}, kind, "/etc/passwd"),
        zipped(tmp_path / "evil.zip", {"birds/passwd": b"/etc/passwd"}, mode),
    ):
        with pytest.raises(UserError, match=f"{archive.name} contains a {word}, birds/passwd: rejected"):
            unpacked(archive, tmp_path / "out")
        assert list((tmp_path / "out").iterdir()) == []


def test_a_file_under_a_password_is_refused(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "locked.zip", {"1.jpg": b"1"})
    content = bytearray(archive.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1  # the flag of an encrypted member, in the directory
    archive.write_bytes(content)
    with pytest.raises(UserError, match=r"locked\.zip contains a file with a password, 1\.jpg"):
        unpacked(archive, tmp_path / "out")


def with_method(archive: Path, method: int) -> Path:
    """A zip file whose only member says that it is compressed in that way, in both places that tell."""
    content = bytearray(archive.read_bytes())
    for start, place in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        content[content.index(start) + place] = method
    archive.write_bytes(content)
    return archive


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (99, r"a\.zip contains a file with a password, 1\.jpg"),
        (9, r"a\.zip has an unknown compression or encryption .*pack it again"),
        (93, r"a\.zip has an unknown compression or encryption"),
    ],
)
def test_a_compression_that_python_does_not_know(method: int, message: str, tmp_path: Path) -> None:
    archive = with_method(zipped(tmp_path / "a.zip", {"1.jpg": b"1"}), method)
    with pytest.raises(UserError, match=message):
        unpacked(archive, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def zeros_in_a_tar(path: Path, size: int) -> Path:
    with gzip.open(path, "wb") as packed:
        info = tarfile.TarInfo("zeros.jpg")
        info.size = size
        packed.write(info.tobuf())
        for _ in range(size >> 20):
            packed.write(bytes(1 << 20))
        packed.write(bytes(1024))
    return path


def many_in_a_tar(path: Path, count: int) -> Path:
    header = b"".join(tarfile.TarInfo(f"{number}.jpg").tobuf() for number in range(1000))
    with gzip.open(path, "wb") as packed:
        for _ in range(count // 1000):
            packed.write(header)
        packed.write(bytes(1024))
    return path


@pytest.mark.parametrize("bomb", ["one of zeros", "one of nothing, many times", "zeros in a zip file"])
def test_a_small_archive_does_not_fill_the_disk(bomb: str, tmp_path: Path) -> None:
    file = tmp_path / "bomb"
    if bomb == "one of zeros":
        zeros_in_a_tar(file, 72 << 20)
    elif bomb == "one of nothing, many times":
        many_in_a_tar(file, 20_000)
    else:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("zeros", "w") as member:
            for _ in range(72):
                member.write(bytes(1 << 20))
    assert file.stat().st_size < 300_000
    with pytest.raises(UserError, match=r"bomb \(.* KiB\) unpacks to more than 64 MiB: rejected"):
        unpacked(file, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_tar_file_is_not_begun_where_there_is_no_room_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free._replace(free=4000))  # a disk that is nearly full
    with pytest.raises(UserError, match=r"has 3\.906 KiB free, but 4\.883 KiB are needed"):
        unpacked(tarred(tmp_path / "a.tar", {"1.jpg": b"1" * 5000}), tmp_path / "out")


@pytest.mark.parametrize("pack", [zipped, tarred])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_half_an_archive_leaves_nothing(pack, share: float, tmp_path: Path) -> None:
    whole = pack(tmp_path / "half", {f"{number}.jpg": bytes([number]) * 5000 for number in range(50)}).read_bytes()
    refused_as_incomplete(tmp_path / "half", whole[: int(len(whole) * share)])


def refused_as_incomplete(archive: Path, content: bytes, reason: str = "") -> None:
    archive.write_bytes(content)
    with pytest.raises(UserError, match=rf"{archive.name} is not a complete zip or tar file.*{reason}"):
        unpacked(archive, archive.parent / "out")
    assert list((archive.parent / "out").iterdir()) == []


def test_a_damaged_member_or_name_leaves_nothing(tmp_path: Path) -> None:
    content = bytearray(zipped(tmp_path / "a.zip", {"1.jpg": BYTES}).read_bytes())
    content[200] ^= 1
    refused_as_incomplete(tmp_path / "a.zip", content, "Bad CRC-32 for file '1.jpg'")
    content = zipped(tmp_path / "a.zip", {"ä.jpg": b"1"}).read_bytes()
    refused_as_incomplete(tmp_path / "a.zip", content.replace("ä".encode(), b"\xff\xff"))


def test_a_web_page_is_called_one(tmp_path: Path) -> None:
    (tmp_path / "birds.zip").write_text("\n<!DOCTYPE html><html>Quota exceeded</html>")
    with pytest.raises(UserError, match=r"birds\.zip is a web page instead of an archive"):
        unpacked(tmp_path / "birds.zip", tmp_path / "out")


@pytest.mark.parametrize("is_link", [False, True])
def test_nothing_is_written_over(is_link: bool, tmp_path: Path) -> None:
    place = tmp_path / "out" / "birds"
    (tmp_path / "elsewhere" if is_link else place).mkdir(parents=True)
    if is_link:
        place.parent.mkdir()
        place.symlink_to(tmp_path / "elsewhere")
    (place / "1.jpg").write_bytes(b"mine")
    with pytest.raises(UserError, match="birds already exists: move it away"):
        unpacked(zipped(tmp_path / "birds.zip", {"birds/1.jpg": b"theirs", "README": b""}), tmp_path / "out")
    assert (place / "1.jpg").read_bytes() == b"mine"
    assert not (tmp_path / "out" / "README").exists()
