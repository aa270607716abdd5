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
    archive = pack(tmp_path / "birds.archive", members)
    assert unpacked(archive, tmp_path / "one", inside="birds/a jay") == {"1.jpg": BYTES}
    found = unpacked(archive, tmp_path / "out")
    assert found == {name.removeprefix("./"): content for name, content in members.items()}
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["birds"]


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


@pytest.mark.parametrize(
    ("byte", "value", "message"),
    [
        (8, 1, r"a\.zip contains a file with a password, 1\.jpg"),  # the flags of a member: encrypted
        (10, 99, r"a\.zip contains a file with a password, 1\.jpg"),  # its compression
        (10, 9, r"a\.zip has an unknown compression or encryption .*pack it again"),
        (10, 93, r"a\.zip has an unknown compression or encryption"),
    ],
)
def test_a_password_or_a_compression_that_python_does_not_know(byte, value, message: str, tmp_path: Path) -> None:
    content = bytearray(zipped(tmp_path / "a.zip", {"1.jpg": b"1"}).read_bytes())
    for start, place in ((b"PK\x03\x04", byte - 2), (b"PK\x01\x02", byte)):  # beside the file and in the directory
        content[content.index(start) + place] |= value
    (tmp_path / "a.zip").write_bytes(content)
    with pytest.raises(UserError, match=message):
        unpacked(tmp_path / "a.zip", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def zeros(path: Path, size: int = 72 << 20) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed, packed.open("zeros", "w") as member:
        for _ in range(size >> 20):
            member.write(bytes(1 << 20))


def zeros_in_a_tar(path: Path, size: int = 72 << 20) -> None:
    with gzip.open(path, "wb", 1) as packed:
        info = tarfile.TarInfo("zeros.jpg")
        info.size = size
        packed.write(info.tobuf())
        for _ in range(size >> 20):
            packed.write(bytes(1 << 20))
        packed.write(bytes(1024))


def many_in_a_tar(path: Path, count: int = 17_000) -> None:
    header = b"".join(tarfile.TarInfo(f"{number}.jpg").tobuf() for number in range(1000))
    path.write_bytes(gzip.compress(header * (count // 1000) + bytes(1024)))


@pytest.mark.parametrize("bomb", [zeros, zeros_in_a_tar, many_in_a_tar])
def test_a_small_archive_does_not_fill_the_disk(bomb, tmp_path: Path) -> None:
    bomb(tmp_path / "bomb")
    assert (tmp_path / "bomb").stat().st_size < 400_000
    with pytest.raises(UserError, match=r"bomb \(.* KiB\) unpacks to more than 64 MiB: rejected"):
        unpacked(tmp_path / "bomb", tmp_path / "out")
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
