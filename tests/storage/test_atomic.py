"""What is stored takes the place of a file, and is never written through a link that lies in its way."""

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from levelfield.core.ledger import Evaluation, begin
from levelfield.errors import UserError
from levelfield.storage.atomic import temporary_name, write_atomically


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    file = tmp_path / "precious"
    file.write_text("mine\n")
    return file


def test_a_planted_link_is_replaced(precious: Path, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / "results.csv").symlink_to(precious)
    write_atomically(folder / "results.csv", b"method\n")
    assert precious.read_text() == "mine\n"
    assert (folder / "results.csv").read_bytes() == b"method\n"
    assert not (folder / "results.csv").is_symlink()
    assert [path.name for path in folder.iterdir()] == ["results.csv"]
    (folder / "other").touch()
    assert (folder / "results.csv").stat().st_mode == (folder / "other").stat().st_mode


def test_many_that_write_one_file_leave_a_whole_one(tmp_path: Path) -> None:
    path, contents = tmp_path / "index", {bytes([number]) * 100_000 for number in range(8)}

    def write(content: bytes) -> None:
        for _ in range(40):
            write_atomically(path, content)
            assert path.read_bytes() in contents

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, contents))
    assert [file.name for file in tmp_path.iterdir()] == ["index"]


def test_the_next_writer_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    dead, alive, other = (
        temporary_name(name, process)
        for name, process in (("index", ended.pid), ("index", os.getppid()), ("index2", ended.pid))
    )
    for name in (dead, alive, other):
        (tmp_path / name).write_bytes(b"half a")
    write_atomically(tmp_path / "index", b"whole")
    assert {file.name for file in tmp_path.iterdir()} == {"index", alive, other}


def test_a_ledger_that_is_a_link_is_refused(precious: Path, tmp_path: Path) -> None:
    (tmp_path / "ledger.jsonl").symlink_to(precious)
    precious.write_text("")
    with pytest.raises(UserError, match=r"ledger\.jsonl"):
        begin(Evaluation("glyphs", ["00" * 32], "levelfield test"), tmp_path)
    assert precious.read_text() == ""
