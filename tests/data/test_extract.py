"""Unpacking archives that somebody else made: what is safe is unpacked, what is not is refused with nothing left."""

from __future__ import annotations

import io
import stat
import tarfile
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
@pytest.mark.parametrize("pack", [zipped, tarred])
def test_a_path_to_the_outside_is_refused(pack, name: str, tmp_path: Path) -> None:
    archive = pack(tmp_path / "evil", {"birds/1.jpg": b"1", name: b"evil"})
    folder = tmp_path / "deep" / "out"
    folder.mkdir(parents=True)
    with pytest.raises(UserError, match=r"evil writes outside its folder, to .*outside: refused; fetch"):
        unpacked(archive, folder)
    assert list(folder.iterdir()) == []
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["deep", "evil", "out"]


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        (tarfile.SYMTYPE, "link"),
        (tarfile.LNKTYPE, "link"),
        (tarfile.CHRTYPE, "device"),
        (tarfile.BLKTYPE, "device"),
        (tarfile.FIFOTYPE, "device"),
    ],
)
def test_links_and_devices_in_a_tar_file_are_refused(kind: bytes, word: str, tmp_path: Path) -> None:
    archive = tarred(tmp_path / "evil.tgz", {"birds/passwd": b""}, kind, "/etc/passwd")
    with pytest.raises(UserError, match=f"evil.tgz holds a {word}, birds/passwd: refused"):
        unpacked(archive, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(("mode", "word"), [(stat.S_IFLNK, "link"), (stat.S_IFCHR, "device")])
def test_links_and_devices_in_a_zip_file_are_refused(mode: int, word: str, tmp_path: Path) -> None:
    archive = zipped(tmp_path / "evil.zip", {"birds/passwd": b"/etc/passwd"}, mode)
    with pytest.raises(UserError, match=f"evil.zip holds a {word}, birds/passwd: refused"):
        unpacked(archive, tmp_path / "out")


def test_a_file_under_a_password_is_refused(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "locked.zip", {"1.jpg": b"1"})
    content = bytearray(archive.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1  # the flag of an encrypted member, in the directory
    archive.write_bytes(content)
    with pytest.raises(UserError, match=r"locked\.zip holds a file under a password, 1\.jpg"):
        unpacked(archive, tmp_path / "out")


@pytest.mark.parametrize("pack", [zipped, tarred])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_half_an_archive_leaves_nothing(pack, share: float, tmp_path: Path) -> None:
    whole = pack(tmp_path / "half", {f"{number}.jpg": bytes([number]) * 5000 for number in range(50)}).read_bytes()
    (tmp_path / "half").write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(UserError, match=r"half is not a whole zip or tar file .*: delete it and fetch it again"):
        unpacked(tmp_path / "half", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_damaged_member_leaves_nothing(tmp_path: Path) -> None:
    content = bytearray(zipped(tmp_path / "a.zip", {"1.jpg": BYTES}).read_bytes())
    content[200] ^= 1
    (tmp_path / "a.zip").write_bytes(content)
    with pytest.raises(UserError, match=r"a\.zip is not a whole zip or tar file \(Bad CRC-32 for file '1\.jpg'\)"):
        unpacked(tmp_path / "a.zip", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_web_page_is_called_one(tmp_path: Path) -> None:
    (tmp_path / "birds.zip").write_text("\n<!DOCTYPE html><html>Quota exceeded</html>")
    with pytest.raises(UserError, match=r"birds\.zip is a web page instead of an archive"):
        unpacked(tmp_path / "birds.zip", tmp_path / "out")


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "out" / "birds").mkdir(parents=True)
    (tmp_path / "out" / "birds" / "1.jpg").write_bytes(b"mine")
    archive = zipped(tmp_path / "birds.zip", {"birds/1.jpg": b"theirs", "README": b""})
    with pytest.raises(UserError, match="birds is there already: move it away"):
        unpacked(archive, tmp_path / "out")
    assert (tmp_path / "out" / "birds" / "1.jpg").read_bytes() == b"mine"
    assert not (tmp_path / "out" / "README").exists()


def test_a_link_in_the_way_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "birds").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="birds is there already"):
        unpacked(zipped(tmp_path / "birds.zip", {"birds/1.jpg": b"1"}), tmp_path / "out")
    assert list((tmp_path / "elsewhere").iterdir()) == []
