"""Downloads from a server on this machine: whole, cut, wrong and gone."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from file_server import FileServer, serving

from levelfield.data.checksum import check, record
from levelfield.data.datasets.archives import Archive
from levelfield.data.download import check_room, fetch
from levelfield.errors import UserError

CONTENT = np.random.default_rng(0).bytes(300_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving() as files:
        yield files


def get(url: str, folder: Path, **known: object) -> Path:
    archive = Archive("birds.zip", gives="birds", url=url, **known)  # type: ignore[arg-type]
    return fetch(archive, folder, "get birds.zip by hand", lambda done, total: None)


def test_a_file_arrives_whole_and_nothing_else_is_left(server: FileServer, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    archive = Archive("birds.zip", gives="birds", url=server.url("birds.zip", CONTENT), size=len(CONTENT))
    file = fetch(archive, tmp_path, "", lambda done, total: seen.append((done, total)))
    assert file.read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["birds.zip"]
    assert seen[-1] == (300_000, 300_000)
    fetch(archive, tmp_path, "", lambda done, total: None)
    assert len(server.requests) == 1  # what is there is not fetched again


def test_a_cut_transfer_leaves_nothing_and_the_next_command_works(server: FileServer, tmp_path: Path) -> None:
    url = server.url("birds.zip", CONTENT, stops=[100_000])
    with pytest.raises(UserError, match=r"stopped \(.*100,000 .*\): run the command again; or get birds\.zip by hand"):
        get(url, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert get(url, tmp_path).read_bytes() == CONTENT
    assert [sent for _, sent in server.requests] == [100_000, len(CONTENT)]


def test_a_part_of_a_killed_command_is_replaced(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "birds.zip.part").write_bytes(CONTENT[::-1] + b"more")
    assert get(server.url("birds.zip", CONTENT), tmp_path).read_bytes() == CONTENT


def test_a_server_that_tells_no_length(server: FileServer, tmp_path: Path) -> None:
    assert get(server.url("birds.zip", CONTENT, tells_length=False), tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize(("status", "said"), [(404, "HTTP 404 Not Found"), (503, "HTTP 503 Service Unavailable")])
def test_a_file_that_is_not_given_is_one_line(server: FileServer, tmp_path: Path, status: int, said: str) -> None:
    url = server.url("birds.zip", CONTENT, statuses=[status])
    with pytest.raises(UserError, match=f"{url} .{said}.: get birds.zip by hand"):
        get(url, tmp_path)


def test_no_network_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:  # a port that nobody listens on
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UserError, match=rf"cannot reach {address} \(.*refused\): check the network"):
            get(f"http://{address}/birds.zip", tmp_path)
    with pytest.raises(UserError, match=r"cannot reach nowhere\.invalid"):
        get("http://nowhere.invalid/birds.zip", tmp_path)


def test_a_web_page_instead_of_the_file_is_seen_by_its_size(server: FileServer, tmp_path: Path) -> None:
    url = server.url("birds.zip", b"<html>too many downloads</html>")
    with pytest.raises(UserError, match="31 bytes instead of 300,000"):
        get(url, tmp_path, size=300_000)


def test_the_checksum(tmp_path: Path) -> None:
    file = tmp_path / "birds.zip"
    file.write_bytes(CONTENT)
    known = Archive("birds.zip", gives="birds", sha256=SHA256)
    assert check(file, known, tmp_path) == "SHA-256 as published"
    file.write_bytes(CONTENT[:-1])
    with pytest.raises(UserError, match=f"birds.zip has the SHA-256 .* instead of {SHA256}: .*download it again"):
        check(file, known, tmp_path)


def test_an_unknown_checksum_is_recorded_and_called_unverified(tmp_path: Path) -> None:
    file, unknown = tmp_path / "birds.zip", Archive("birds.zip", gives="birds")
    file.write_bytes(CONTENT)
    assert "unverified" in check(file, unknown, tmp_path)
    record(file, unknown, tmp_path)
    assert (tmp_path / "birds.zip.sha256").read_text() == f"{SHA256}  birds.zip\n"  # as sha256sum --check reads it
    assert "the same file as the first time" in check(file, unknown, tmp_path)
    file.write_bytes(CONTENT[:-1])
    with pytest.raises(UserError, match=f"recorded {SHA256} the first time"):
        check(file, unknown, tmp_path)


def test_a_full_disk_is_said_before_anything_is_fetched(tmp_path: Path) -> None:
    check_room(tmp_path, 0)
    with pytest.raises(UserError, match=rf"{tmp_path} has .* free, but 1,048,576.00 GiB are needed"):
        check_room(tmp_path, 1 << 50)
