"""What `scripts/results.py` keeps of a study verifies, and a changed number in it is found."""

import json
import lzma
import re
import runpy
import shutil
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from deletable import RESULTS, needs
from tiny_fit import REPOSITORY

from levelfield.errors import UserError

RUN = "jobs/arcface/run1"


@pytest.fixture
def script() -> dict[str, Any]:
    return runpy.run_path(str(REPOSITORY / "scripts" / "results.py"))


def members(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}


def rewrite(archive: Path, name: str, change: Callable[[bytes], bytes]) -> None:
    """Change one file of an archive."""
    contents, stored = members(archive), BytesIO()
    contents[name] = change(contents[name])
    with tarfile.open(fileobj=stored, mode="w") as tar:
        for member, content in contents.items():
            entry = tarfile.TarInfo(member)
            entry.size = len(content)
            tar.addfile(entry, BytesIO(content))
    archive.write_bytes(lzma.compress(stored.getvalue()))


def raised(*keys: Any) -> Callable[[bytes], bytes]:
    """A JSON file whose number at `keys` is a little higher."""

    def change(content: bytes) -> bytes:
        part = whole = json.loads(content)
        for key in keys[:-1]:
            part = part[key]
        part[keys[-1]] += 1e-6
        return json.dumps(whole).encode()

    return change


def next_digit(content: bytes) -> bytes:
    """A table whose last digit is another one."""
    text = content.decode().rstrip("\n")
    return f"{text[:-1]}{(int(text[-1]) + 1) % 10}\n".encode()


def test_keep_writes_an_archive_and_a_summary_and_a_change_in_either_is_found(
    copy: Path, tmp_path: Path, script: dict[str, Any], capsys: pytest.CaptureFixture
) -> None:
    kept = script["keep"](copy, tmp_path / "results")
    assert kept == tmp_path / "results" / "copy"
    assert sorted(path.name for path in kept.iterdir()) == ["archive.tar.xz", "summary.csv"]
    assert (kept / "summary.csv").read_bytes() == (copy / "summary.csv").read_bytes()
    stored = members(kept / "archive.tar.xz")
    for name in ("results.csv", "ledger.jsonl"):
        assert stored[name] == (copy / name).read_bytes()
    # 2 methods x (3 trials + 2 runs), and the baseline, each on 2 folds.
    assert sum(bool(re.search(r"/fold\d/result\.json$", name)) for name in stored) == (2 * (3 + 2) + 1) * 2
    assert script["problems_of"](kept) == []

    for name, change, named in (
        (f"{RUN}/test/result.json", raised("concatenated", "map_at_r"), f"{RUN}/test/result.json: the scores"),
        (f"{RUN}/fold0/result.json", raised("validation", "map_at_r"), "arcface: a result.json"),
        ("jobs/arcface/trial1/fold0/result.json", raised("validation", "map_at_r"), "arcface: a result.json"),
        ("results.csv", next_digit, "results.csv line"),
        ("summary.csv", next_digit, "summary.csv line"),
    ):
        changed = Path(shutil.copytree(kept, tmp_path / "changed" / "copy", dirs_exist_ok=True))
        rewrite(changed / "archive.tar.xz", name, change)
        assert any(problem.startswith(named) for problem in script["problems_of"](changed)), name

    shutil.copytree(kept, tmp_path / "results" / "sound")
    (kept / "summary.csv").write_bytes(next_digit((kept / "summary.csv").read_bytes()))
    capsys.readouterr()
    assert script["check"](tmp_path / "results") == 1
    first, second, last = capsys.readouterr().out.splitlines()
    assert first.startswith("copy: summary.csv")
    assert (second, last) == ("sound: verified", "1 of 2 studies verified")


def test_an_unfinished_or_changed_study_is_refused_and_nothing_is_written(
    copy: Path, tmp_path: Path, script: dict[str, Any]
) -> None:
    summary = (copy / "summary.csv").read_bytes()
    (copy / "summary.csv").write_bytes(next_digit(summary))
    with pytest.raises(UserError, match=r"summary\.csv"):
        script["keep"](copy, tmp_path / "results")
    (copy / "summary.csv").write_bytes(summary)
    (copy / "jobs/arcface/trial1/fold0/result.json").unlink()
    with pytest.raises(UserError, match="arcface trial 1 fold 0"):
        script["keep"](copy, tmp_path / "results")
    assert not (tmp_path / "results").exists()


@needs(RESULTS)
@pytest.mark.full
@pytest.mark.slow
def test_every_kept_study_verifies(script: dict[str, Any], capsys: pytest.CaptureFixture) -> None:
    assert script["check"]() == 0, capsys.readouterr().out
