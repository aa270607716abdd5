"""`levelfield data prepare` from a server on this machine, end to end, for data sets in miniature."""

from __future__ import annotations

import hashlib
import io
import os
import resource
import signal
import tarfile
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from zipfile import ZipFile, ZipInfo

import pytest
from filelock import FileLock, Timeout
from PIL import Image
from refused import refused

from levelfield.cli.data import named_datasets
from levelfield.core.errors import UserError
from levelfield.core.paths import cache_root
from levelfield.data.datasets import CUB200, InShopClothes, Omniglot


class Server(ThreadingHTTPServer):
    """Serves `offers`: of each path its content and what goes wrong; `requests` are the paths that were requested."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.offers: dict[str, tuple[bytes, dict]] = {}
        self.requests: list[str] = []

    def url(self, path: str, content: bytes, **faults: object) -> str:
        """What goes wrong once: `status` is answered, `stops` cuts the transfer, `midway` is called half way."""
        self.offers[f"/{path}"] = content, faults
        return f"http://127.0.0.1:{self.server_port}/{path}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:  # http.server calls it so
        content, faults = self.server.offers[self.path]
        self.server.requests.append(self.path)
        if status := faults.pop("status", None):
            self.send_error(status)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        half = len(content) // 2
        self.wfile.write(content[:half])
        if midway := faults.get("midway"):
            midway()
        if not faults.pop("stops", False):
            self.wfile.write(content[half:])

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def prepare(run, tmp_path: Path):
    """Runs the command below `tmp_path`: (exit code, what it printed and complained)."""

    def prepare(name: str, *words: object) -> tuple[int, str]:
        code, printed, complained = run("data", "prepare", name, "--root", tmp_path / "data", *words)
        return code, printed + complained

    return prepare


def zip_of(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(ZipInfo(name), content)  # the same bytes whenever it is made
    return buffer.getvalue()


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_symlink() or (path.is_file() and path.suffix != ".lock")]


def picture() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "JPEG")
    return buffer.getvalue()


PATHS = [f"{species}/{species[4:]}_000{number}.jpg" for species in ("001.Jay", "002.Wren") for number in (1, 2)]
# The archive of CUB-200-2011 with two species of two images each.
BIRDS = zip_of(
    {
        "CUB_200_2011/images.txt": "".join(f"{i} {path}\n" for i, path in enumerate(PATHS, 1)).encode(),
        "CUB_200_2011/image_class_labels.txt": b"1 1\n2 1\n3 2\n4 2\n",
        "CUB_200_2011/classes.txt": b"1 001.Jay\n2 002.Wren\n",
        "attributes.txt": b"1 has_bill\n",
        **{f"CUB_200_2011/images/{path}": picture() for path in PATHS},
    }
)


@pytest.fixture
def small_cub(server: Server, monkeypatch: pytest.MonkeyPatch):
    """Makes `cub200` come from the server: its content, what its checksum is believed to be, its counts, and faults."""

    def small_cub(content: bytes = BIRDS, believed: bytes | None = BIRDS, samples=4, **faults) -> None:
        digest = hashlib.sha256(believed).hexdigest() if believed is not None else None
        url = server.url("CUB_200_2011.tgz", content, **faults)
        monkeypatch.setattr(CUB200, "archives", (replace(CUB200.archives[0], address=url, sha256=digest),))
        monkeypatch.setattr(CUB200, "num_classes_published", 2)
        monkeypatch.setattr(CUB200, "num_samples_published", samples)

    return small_cub


def test_a_data_set_is_fetched_checked_unpacked_and_counted(prepare, small_cub, server, run, tmp_path: Path) -> None:
    small_cub()
    code, printed = prepare("cub200")
    assert code == 0, printed
    assert "licence: non-commercial research and education" in printed
    assert "CUB_200_2011.tgz: SHA-256 as published" in printed
    assert f"cub200: 2 classes, 4 samples in {tmp_path}/data/cub200, as published" in printed
    assert [path.name for path in (tmp_path / "data" / "cub200").iterdir()] == ["CUB_200_2011"]
    assert run("data", "verify", "cub200", "--root", tmp_path / "data")[0] == 0
    assert prepare("cub200")[0] == 0
    assert len(server.requests) == 1  # nothing to do
    (tmp_path / "data" / "cub200" / "CUB_200_2011" / "images.txt").unlink()
    (mine := tmp_path / "CUB_200_2011.tgz").write_bytes(BIRDS)
    for words in ((), ("--archive", mine)):
        code, printed = prepare("cub200", *words)
        assert code == 2
        assert f"move {tmp_path}/data/cub200 away, then download it again: levelfield data prepare cub200" in printed
    (tmp_path / "data" / "cub200").rename(tmp_path / "away")
    assert prepare("cub200")[0] == 0
    (tmp_path / "data" / "cub200").rename(tmp_path / "away again")
    small_cub(samples=5)
    code, printed = prepare("cub200")
    assert (code, "levelfield data verify cub200 shows what is wrong" in printed) == (2, True)


PAGE = b"<html>Too many users have viewed or downloaded this file recently</html>"
FAULTS = [
    (
        {"status": 404},
        "/CUB_200_2011.tgz (HTTP Error 404: Not Found): run the command again; or get CUB_200_2011.tgz from",
    ),
    ({"stops": True}, "it is damaged or another file: get CUB_200_2011.tgz from https://www.vision.caltech.edu"),
    ({"midway": lambda: time.sleep(1)}, "/CUB_200_2011.tgz (timed out): run the command again"),
    ({"content": PAGE, "believed": None}, "(file could not be opened successfully): get CUB_200_2011.tgz from"),
    ({"content": zip_of({"cats/1.jpg": b""}), "believed": None}, "CUB_200_2011.tgz has no CUB_200_2011: get"),
]


@pytest.mark.parametrize(("fault", "said"), FAULTS, ids=[said[:20] for _, said in FAULTS])
def test_a_download_that_fails_leaves_nothing_and_the_next_command_works(
    fault: dict, said: str, prepare, small_cub, server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small_cub(**fault)
    if "midway" in fault:
        monkeypatch.setattr("levelfield.data.prepare.TIMEOUT", 0.2)
    code, printed = prepare("cub200")
    assert (code, said in printed) == (2, True), printed
    assert "run levelfield data prepare cub200 --archive CUB_200_2011.tgz" in printed
    assert server.requests
    assert files_in(tmp_path) == []
    small_cub()
    assert prepare("cub200")[0] == 0


def test_a_full_disk_and_no_network_are_one_line(prepare, small_cub, server, monkeypatch, tmp_path: Path) -> None:
    small_cub(zip_of({"CUB_200_2011/images.txt": bytes(3_000_000)}), believed=None)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, before[1]))
    try:
        code, printed = prepare("cub200")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (code, f"cannot write {tmp_path}/data/cub200 (File too large)" in printed) == (2, True), printed
    assert files_in(tmp_path) == []
    monkeypatch.setattr(
        CUB200, "archives", (replace(CUB200.archives[0], address=(url := "http://nowhere.invalid/1.zip")),)
    )
    code, printed = prepare("cub200")
    assert (code, f"cannot download {url} (<urlopen error [Errno " in printed) == (2, True), printed


def test_an_archive_given_by_hand_is_checked_and_left_alone(prepare, small_cub, server, tmp_path: Path) -> None:
    small_cub()
    mine = tmp_path / "CUB_200_2011.tgz"
    mine.write_bytes(BIRDS[:-1])
    code, printed = prepare("cub200", "--archive", mine)
    assert (code, f"{mine} has the SHA-256" in printed) == (2, True)
    mine.write_bytes(BIRDS)
    code, printed = prepare("cub200", "--archive", mine)
    assert (code, mine.exists(), server.requests) == (0, True, []), printed
    small_cub(believed=None)
    (tmp_path / "data" / "cub200").rename(tmp_path / "away")
    code, printed = prepare("cub200", "--archive", mine)
    assert (code, f"SHA-256 {hashlib.sha256(BIRDS).hexdigest()}, unverified" in printed) == (0, True), printed


def test_one_process_prepares_a_data_set_and_ctrl_c_leaves_it_to_the_next(prepare, small_cub, tmp_path: Path) -> None:
    waits = []

    def interrupt() -> None:
        with pytest.raises(Timeout) as held:
            FileLock(cache_root() / "locks" / "prepare-cub200.lock").acquire(blocking=False)
        waits.append(held)
        os.kill(os.getpid(), signal.SIGINT)

    small_cub(midway=interrupt)
    code, printed = prepare("cub200")
    assert (code, len(waits), files_in(tmp_path)) == (130, 1, [])
    assert "stopped; the same command starts the download again" in printed
    small_cub()
    assert prepare("cub200")[0] == 0


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
    (BIRDS.replace(b"1 has_bill", b"2 has_bill"), "Bad CRC-32 for file 'attributes.txt'"),
    (BIRDS[: len(BIRDS) // 2], "file could not be opened successfully"),
]


@pytest.mark.parametrize(("content", "reason"), UNSAFE, ids=range(len(UNSAFE)))
def test_an_unsafe_or_damaged_archive_leaves_nothing(content, reason, prepare, small_cub, server, tmp_path) -> None:
    small_cub(believed=None)
    (given := tmp_path / "CUB_200_2011.tgz").write_bytes(content)
    (tmp_path / "outside").write_bytes(b"mine")
    code, printed = prepare("cub200", "--archive", given)
    assert (code, reason in printed, f"{given}" in printed) == (2, True, True), printed
    assert (sorted(files_in(tmp_path)), server.requests) == ([given, tmp_path / "outside"], [])
    assert (tmp_path / "outside").read_bytes() == b"mine"


def test_terms_that_a_person_has_to_agree_to(prepare, run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, printed = prepare("inshop")
    assert code == 2
    assert "download img.zip and list_eval_partition.txt yourself" in printed
    assert "levelfield data prepare inshop --archive img.zip --archive list_eval_partition.txt" in printed
    rows = [f"img/MEN/id_{item}/{side}.jpg  id_{item}" for item in (1, 2) for side in ("front", "back")]
    statuses = ("train", "train", "query", "gallery")
    listed = "".join(f"{row}  {status}\n" for row, status in zip(rows, statuses, strict=True))
    partition = tmp_path / "list_eval_partition.txt"
    partition.write_text(f"4\nimage_name item_id evaluation_status\n{listed}")
    images = tmp_path / "img.zip"
    images.write_bytes(zip_of({row.split()[0]: picture() for row in rows}))
    monkeypatch.setattr(InShopClothes, "num_classes_published", 2)
    monkeypatch.setattr(InShopClothes, "num_samples_published", 4)
    code, printed = prepare("inshop", "--archive", images, "--archive", partition)
    assert (code, "img.zip: SHA-256 " in printed) == (0, True), printed
    assert run("data", "verify", "inshop", "--root", tmp_path / "data")[0] == 0


def test_a_file_that_is_used_as_it_is(prepare, server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    archives = []
    for official in Omniglot.archives:
        content = zip_of({f"{official.file[:-4]}/Greek/character01/0001_01.png": picture()})
        digest = hashlib.sha256(content).hexdigest()
        archives.append(replace(official, address=server.url(official.file, content), sha256=digest))
    monkeypatch.setattr(Omniglot, "archives", tuple(archives))
    monkeypatch.setattr(Omniglot, "num_classes_published", 2)
    monkeypatch.setattr(Omniglot, "num_samples_published", 2)
    code, printed = prepare("omniglot")
    assert code == 0, printed
    folder = tmp_path / "data" / "omniglot"
    assert sorted(path.name for path in folder.iterdir()) == ["images_background.zip", "images_evaluation.zip"]
    whole = (folder / "images_background.zip").read_bytes()
    (folder / "images_background.zip").write_bytes(whole[:-1])
    with pytest.raises(UserError, match=r"is damaged .* levelfield data prepare omniglot"):
        Omniglot(tmp_path / "data").read_index()
    assert prepare("omniglot")[0] == 0
    assert (folder / "images_background.zip").read_bytes() == whole
    assert len(server.requests) == 3  # the other file was sound


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "NAME"),
        (["cub200", "--archive", "nowhere.tgz", "--root", "."], "--archive nowhere.tgz: no such file"),
        (["cub200", "--archive", __file__, "--archive", __file__, "--root", "."], "cub200 needs CUB_200_2011.tgz"),
        (["cub200", "omniglot", "--archive", __file__], "--archive needs exactly one NAME"),
        (["cub200"], "cub200 needs a folder: give --root DIR, or set LEVELFIELD_DATA"),
        (["cub200", "--root", __file__], __file__),
    ],
)
def test_a_mistake_is_one_line(words, message, run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEVELFIELD_DATA", raising=False)
    refused(run("data", "prepare", *words), message)


def test_each_archive_has_a_checksum_or_says_that_none_is_known() -> None:
    for kind in named_datasets().values():
        for archive in kind.archives:
            assert archive.sha256 is None or len(bytes.fromhex(archive.sha256)) == 32
            assert archive.url is None or archive.url.startswith(("https://", "http://"))
            # Nothing is fetched without encryption that is not checked.
            assert archive.sha256 or not (archive.url or "").startswith("http://")
