"""`levelfield data prepare` from a server on this machine, end to end, for data sets in miniature."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import signal
import tarfile
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from zipfile import ZipFile

import pytest
from filelock import FileLock, Timeout
from full_disk import full_disk
from miniatures import cub200, inshop
from refused import refused

from levelfield.cli.data import named_datasets
from levelfield.core.errors import UserError
from levelfield.core.paths import cache_root
from levelfield.data.datasets import CUB200, InShopClothes, Omniglot


class Handler(SimpleHTTPRequestHandler):
    """Sends files; the server's `midway` is called after the first half of one, and says whether to stop there."""

    def copyfile(self, source, outputfile) -> None:
        content = source.read()
        outputfile.write(content[: len(content) // 2])
        self.server.sent.append(self.path)
        if not self.server.midway():
            outputfile.write(content[len(content) // 2 :])

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ThreadingHTTPServer]:
    """Serves the files of `tmp_path/served`."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    (tmp_path / "served").mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=tmp_path / "served")) as server:
        server.sent, server.midway = [], lambda: False
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        yield server
        server.shutdown()


def serve(server: ThreadingHTTPServer, folder: Path, name: str, content: bytes) -> str:
    """Makes the server of a folder offer a file; returns its address."""
    (folder / "served" / name).write_bytes(content)
    return f"http://127.0.0.1:{server.server_port}/{name}"


@pytest.fixture
def prepare(run, tmp_path: Path):
    """Runs the command below `tmp_path`; returns what it printed and complained, with an exit code and words in it."""

    def prepare(name: str, *words: object, code: int = 0, says: str = "") -> str:
        found, printed, complained = run("data", "prepare", name, "--root", tmp_path / "data", *words)
        assert (found, says in printed + complained) == (code, True), printed + complained
        return printed + complained

    return prepare


def zip_of(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def zipped(folder: Path) -> bytes:
    """The folder as an archive that has it at the top."""
    return Path(shutil.make_archive(f"{folder}", "zip", folder.parent, folder.name)).read_bytes()


def files_in(folder: Path) -> list[Path]:
    found = (path for path in folder.rglob("*") if path.is_symlink() or path.is_file())
    return sorted(path for path in found if path.suffix != ".lock" and path.parent != folder / "served")


@pytest.fixture(scope="module")
def birds(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The archive of CUB-200-2011 with two species of two images each."""
    return zipped(cub200(tmp_path_factory.mktemp("birds"), classes=2, samples=2))


@pytest.fixture
def small_cub(birds: bytes, server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Makes `cub200` come from the server: another content, without a checksum, with another number of samples."""

    def small_cub(content: bytes = birds, checked: bool = True, samples: int = 4) -> None:
        digest = hashlib.sha256(birds).hexdigest() if checked else None
        url = serve(server, tmp_path, "CUB_200_2011.tgz", content)
        monkeypatch.setattr(CUB200, "archives", (replace(CUB200.archives[0], address=url, sha256=digest),))
        monkeypatch.setattr(CUB200, "num_classes_published", 2)
        monkeypatch.setattr(CUB200, "num_samples_published", samples)

    return small_cub


def test_a_data_set_is_fetched_checked_unpacked_and_counted(prepare, small_cub, server, birds, run, tmp_path) -> None:
    small_cub()
    printed = prepare("cub200", says="licence: non-commercial research and education")
    assert "CUB_200_2011.tgz: SHA-256 as published" in printed
    assert f"cub200: 2 classes, 4 samples in {tmp_path}/data/cub200, as published" in printed
    folder = tmp_path / "data" / "cub200"
    assert [path.name for path in folder.iterdir()] == ["CUB_200_2011"]
    assert run("data", "verify", "cub200", "--root", tmp_path / "data")[0] == 0
    prepare("cub200")
    assert len(server.sent) == 1  # nothing to do
    (folder / "CUB_200_2011" / "images.txt").unlink()
    (mine := tmp_path / "CUB_200_2011.tgz").write_bytes(birds)
    for words in ((), ("--archive", mine)):
        says = f"move {folder} away, then download it again: levelfield data prepare cub200"
        prepare("cub200", *words, code=2, says=says)
    folder.rename(tmp_path / "away")
    small_cub(samples=5)
    prepare("cub200", code=2, says="levelfield data verify cub200 shows what is wrong")


def test_a_download_that_fails_leaves_nothing_and_the_next_command_works(
    prepare, small_cub, server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("levelfield.data.prepare.TIMEOUT", 0.2)
    for server_s_fault, said in {
        "stops": "it is damaged or another file: ",
        "waits": "/CUB_200_2011.tgz (timed out): run the command again",
        "no such file": "/CUB_200_2011.tgz (HTTP Error 404: ",
        "no such server": "cannot download http://nowhere.invalid/CUB_200_2011.tgz (<urlopen error [Errno ",
    }.items():
        small_cub()
        server.midway = {"stops": lambda: True, "waits": lambda: time.sleep(1)}.get(server_s_fault)
        if server_s_fault == "no such file":
            (tmp_path / "served/CUB_200_2011.tgz").unlink()
        elif server_s_fault == "no such server":
            moved = replace(CUB200.archives[0], address="http://nowhere.invalid/CUB_200_2011.tgz")
            monkeypatch.setattr(CUB200, "archives", (moved,))
        printed = prepare("cub200", code=2, says=said)
        assert "get CUB_200_2011.tgz from https://www.vision.caltech.edu" in printed
        assert "run levelfield data prepare cub200 --archive CUB_200_2011.tgz" in printed
        assert files_in(tmp_path) == []
    server.midway = lambda: False
    small_cub(zip_of({"CUB_200_2011/images.txt": bytes(3_000_000)}), checked=False)
    with full_disk(2_000_000):
        prepare("cub200", code=2, says=f"cannot write {tmp_path}/data/cub200 (File too large)")
    assert files_in(tmp_path) == []
    small_cub()
    prepare("cub200")


def test_an_archive_given_by_hand_is_checked_and_left_alone(prepare, small_cub, server, birds, tmp_path: Path) -> None:
    small_cub()
    mine = tmp_path / "CUB_200_2011.tgz"
    mine.write_bytes(birds[:-1])
    prepare("cub200", "--archive", mine, code=2, says=f"{mine} has the SHA-256")
    mine.write_bytes(birds)
    prepare("cub200", "--archive", mine)
    assert (mine.exists(), server.sent) == (True, [])
    small_cub(checked=False)
    (tmp_path / "data" / "cub200").rename(tmp_path / "away")
    prepare("cub200", "--archive", mine, says=f"SHA-256 {hashlib.sha256(birds).hexdigest()}, unverified")


def test_one_process_prepares_a_data_set_and_ctrl_c_leaves_it_to_the_next(prepare, small_cub, server, tmp_path) -> None:
    waits = []

    def interrupt() -> None:
        with pytest.raises(Timeout) as held:
            FileLock(cache_root() / "locks" / "prepare-cub200.lock").acquire(blocking=False)
        waits.append(held)
        os.kill(os.getpid(), signal.SIGINT)

    small_cub()
    server.midway = interrupt
    prepare("cub200", code=130, says="stopped; the same command starts the download again")
    assert (len(waits), files_in(tmp_path)) == (1, [])
    server.midway = lambda: False
    prepare("cub200")


def tar_of(name: str, kind: bytes = tarfile.REGTYPE, points_to: str = "", content: bytes = b"") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        info = tarfile.TarInfo(name)
        info.type, info.linkname, info.size = kind, points_to, len(content)
        archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


UNSAFE = [
    (tar_of("../outside"), "outside the destination"),
    (tar_of("CUB_200_2011", tarfile.SYMTYPE, "/etc"), "absolute path"),
    (tar_of("/CUB_200_2011/images.txt", content=os.urandom(50_000))[:30_000], "ended before the end-of-stream"),
    (zip_of({"../../outside": b"", "/outside": b""}), "has no CUB_200_2011"),
    (zip_of({"CUB_200_2011/images.txt": b"1 Jay/1.jpg"}).replace(b"1 Jay", b"2 Jay"), "Bad CRC-32"),
    (b"<html>Too many users have downloaded this file", "file could not be opened successfully"),
]


@pytest.mark.parametrize(("content", "reason"), UNSAFE, ids=range(len(UNSAFE)))
def test_an_unsafe_or_damaged_archive_leaves_nothing(content, reason, prepare, small_cub, server, tmp_path) -> None:
    small_cub(checked=False)
    (given := tmp_path / "CUB_200_2011.tgz").write_bytes(content)
    (tmp_path / "outside").write_bytes(b"mine")
    assert str(given) in prepare("cub200", "--archive", given, code=2, says=reason)
    assert (files_in(tmp_path), server.sent) == ([given, tmp_path / "outside"], [])
    assert (tmp_path / "outside").read_bytes() == b"mine"


def test_terms_that_a_person_has_to_agree_to(prepare, run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    printed = prepare("inshop", code=2, says="download img.zip and list_eval_partition.txt yourself")
    assert "levelfield data prepare inshop --archive img.zip --archive list_eval_partition.txt" in printed
    partition = inshop(tmp_path, classes=2, samples=2)
    zipped(partition.parent / "img")
    monkeypatch.setattr(InShopClothes, "num_classes_published", 2)
    monkeypatch.setattr(InShopClothes, "num_samples_published", 4)
    archives = ("--archive", partition.with_name("img.zip"), "--archive", partition)
    prepare("inshop", *archives, says="img.zip: SHA-256 ")
    assert run("data", "verify", "inshop", "--root", tmp_path / "data")[0] == 0


def test_a_file_that_is_used_as_it_is(prepare, server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    archives = []
    for official in Omniglot.archives:
        content = zip_of({f"{official.file.removesuffix('.zip')}/Greek/character01/0001_01.png": b"an image"})
        digest = hashlib.sha256(content).hexdigest()
        archives.append(replace(official, address=serve(server, tmp_path, official.file, content), sha256=digest))
    monkeypatch.setattr(Omniglot, "archives", tuple(archives))
    monkeypatch.setattr(Omniglot, "num_classes_published", 2)
    monkeypatch.setattr(Omniglot, "num_samples_published", 2)
    prepare("omniglot")
    folder = tmp_path / "data" / "omniglot"
    assert sorted(path.name for path in folder.iterdir()) == ["images_background.zip", "images_evaluation.zip"]
    whole = (folder / "images_background.zip").read_bytes()
    (folder / "images_background.zip").write_bytes(whole[:-1])
    with pytest.raises(UserError, match=r"is damaged .* levelfield data prepare omniglot"):
        Omniglot(tmp_path / "data").read_index()
    prepare("omniglot")
    assert (folder / "images_background.zip").read_bytes() == whole
    assert len(server.sent) == 3  # the other file was sound


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "NAME"),
        (["cub200", "--archive", "nowhere.tgz", "--root", "."], "--archive nowhere.tgz: no such file"),
        (["cub200", "--archive", __file__, "--archive", __file__, "--root", "."], "cub200 needs CUB_200_2011.tgz"),
        (["cub200"], "cub200 needs a folder: give --root DIR, or set LEVELFIELD_DATA"),
        (["cub200", "--root", __file__], __file__),
    ],
)
def test_a_mistake_is_one_line(words, message, run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEVELFIELD_DATA", raising=False)
    refused(run("data", "prepare", *words), message)


def test_nothing_that_has_no_checksum_is_fetched_without_encryption() -> None:
    archives = [archive for kind in named_datasets().values() for archive in kind.archives]
    assert all(archive.sha256 or not archive.url or archive.url.startswith("https://") for archive in archives)
