"""The fingerprint is of the samples' bytes, which are read once as long as the files stay as they are."""

import hashlib
import os
import shutil
from itertools import product
from pathlib import Path

import pytest
from miniatures import picture

from levelfield.core.errors import UserError
from levelfield.data import hashes
from levelfield.data.datasets import ImageFolder
from levelfield.data.verify import verify


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two images, all of the same size in bytes, in each of 16 classes."""
    for number, sample in product(range(16), range(2)):
        picture(tmp_path / "images" / f"{number:02d}" / f"{sample}.bmp", number, sample)
    return tmp_path / "images"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are read, as `class/file`."""
    names, file_hash = list[str](), hashes.file_hash

    def counted(path: str) -> bytes:
        names.append("/".join(path.split(os.sep)[-2:]))
        return file_hash(path)

    monkeypatch.setattr(hashes, "file_hash", counted)
    return names


def fingerprint(folder: Path, again: bool = False) -> str:
    """As in a process that starts now."""
    dataset = ImageFolder(folder)
    return dataset.fingerprint(dataset.read_index(), again=again)


def by_hand(folder: Path) -> str:
    digest = hashlib.sha256("".join(f"{label:02d}\n" for label in range(16)).encode())
    for label, sample in product(range(16), range(2)):
        key = f"{label:02d}/{sample}.bmp"
        content = hashlib.sha256((folder / key).read_bytes()).hexdigest()
        digest.update(f"{key}\t{label}\t{content}\n".encode())
    return digest.hexdigest()


def swap(image: Path) -> None:
    """Other pixels under the same name, size and modification time, in the same inode."""
    before, content = image.stat(), image.read_bytes()
    image.write_bytes(content[:-1] + bytes([content[-1] ^ 255]))
    os.utime(image, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_file_is_read_again_only_if_it_changes(folder: Path, reads: list[str]) -> None:
    expected = by_hand(folder)
    assert [fingerprint(folder), fingerprint(folder)] == [expected] * 2
    assert len(reads) == 32, "a second start reads no file"
    os.utime(folder / "00" / "0.bmp", ns=(1, 1))
    assert fingerprint(folder) == expected, "the bytes are the same"
    changes = {
        "03/1.bmp": swap,
        "01/0.bmp": lambda file: file.write_bytes((folder / "02" / "0.bmp").read_bytes()),
        "06/0.bmp": lambda file: os.replace(shutil.copy2(folder / "05" / "0.bmp", folder.parent), file),
    }
    for key, change in changes.items():
        change(folder / key)
        found = fingerprint(folder)
        assert found == by_hand(folder) != expected
        expected = found
    assert reads[32:] == ["00/0.bmp", *changes]


def test_a_damaged_file_of_hashes_counts_as_none(folder: Path, cache: Path, reads: list[str]) -> None:
    expected = fingerprint(folder)
    (file,) = (cache / "hashes").glob("*.npy")
    content = file.read_bytes()
    for number, damaged in enumerate((content[:-48], bytes(len(content)), b"none" * 200), start=2):
        file.write_bytes(damaged)
        assert fingerprint(folder) == expected
        assert (len(reads), file.read_bytes()) == (32 * number, content)


def test_data_verify_finds_a_rotten_file_and_its_fingerprint_changes_then(folder: Path, monkeypatch) -> None:
    """A disk that gives other bytes without a write: the file's state stays, so it is kept fixed here."""
    expected = fingerprint(folder)
    states = {path: hashes.file_state(path) for path in map(str, folder.glob("*/*"))}
    monkeypatch.setattr(hashes, "file_state", lambda path: states[str(path)])
    swap(folder / "03" / "0.bmp")
    assert fingerprint(folder) == expected, "nobody has looked yet"
    assert [line.partition(":")[0] for line in verify(ImageFolder(folder)).problems] == ["03/0.bmp"]
    assert fingerprint(folder) == by_hand(folder) != expected, "a study refuses its results"
    swap(folder / "03" / "0.bmp")
    assert fingerprint(folder, again=True) == expected


def test_a_cache_that_cannot_be_written_changes_no_fingerprint_and_a_pipe_is_refused(folder: Path, cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    assert fingerprint(folder) == by_hand(folder)
    os.mkfifo(folder / "00" / "pipe.bmp")
    with pytest.raises(UserError, match=r"pipe\.bmp"):
        fingerprint(folder)
