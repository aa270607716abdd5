"""An archive holds what a finished study found: it verifies, a method is added to it, and a hostile one is refused."""

import io
import re
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from refused import refused

from levelfield.errors import UserError
from levelfield.study.archive import unpack_study, write_archive
from levelfield.study.record import StudyRecord

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def archive(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_archive(StudyRecord.begun(finished), tmp_path_factory.mktemp("archive") / "toy.tar.xz")


def test_the_same_study_gives_the_same_bytes_elsewhere(archive: Path, finished: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(finished, tmp_path / "moved")
    assert write_archive(StudyRecord.begun(moved), tmp_path / "again.tar.xz").read_bytes() == archive.read_bytes()
    unpack_study(archive, tmp_path / "unpacked")
    unpacked = StudyRecord.begun(tmp_path / "unpacked")
    assert write_archive(unpacked, tmp_path / "third.tar.xz").read_bytes() == archive.read_bytes()
    results = {path.relative_to(finished) for path in finished.rglob("result.json")}
    assert results == {path.relative_to(unpacked.folder) for path in unpacked.folder.rglob("result.json")}
    for name in (*results, "ledger.jsonl", "results.csv", "summary.csv"):
        assert (unpacked.folder / name).read_bytes() == (finished / name).read_bytes()


def test_an_archive_is_verified_reported_and_asked_where_it_stands(archive: Path, run: Run, tmp_path: Path) -> None:
    code, printed, complaint = run("study", "verify", archive)
    assert (code, complaint) == (0, "")
    assert "results.csv and summary.csv follow" in printed
    assert "not compared, for an archive has none: the weights" in printed
    assert "done     22 of 22 jobs" in run("study", "status", archive)[1]
    code, printed, complaint = run("study", "report", archive, "--output", tmp_path / "out")
    assert code == 0, complaint
    assert "Unpacked from an archive" in printed
    assert (tmp_path / "out/report/index.html").is_file()
    results = tmp_path / "out/results.csv"
    results.write_text(results.read_text().replace("contrastive,test", "contrastive,tset", 1))
    assert run("study", "verify", tmp_path / "out")[0] == 2


@pytest.mark.parametrize("command", ["run", "resume", "archive"])
def test_what_trains_takes_no_archive_and_says_how_to_begin_with_one(command: str, archive: Path, run: Run) -> None:
    refused(run("study", command, archive), "is an archive", f"levelfield study run FILE --from {archive}")


def test_a_method_is_added_to_an_archived_study(
    archive: Path, toy_file: Path, finished: Path, run: Run, tmp_path: Path
) -> None:
    words = ["study", "run", toy_file, "--from", archive, "--add-method", "TripletMarginLoss"]
    folder = tmp_path / "more"
    code, _, complaint = run(*words, "--output", folder)
    assert code == 2
    assert "--reopen-test" in complaint
    code, printed, complaint = run(*words, "--output", folder, "--reopen-test", "another loss")
    assert code == 0, complaint
    assert "THE TEST CLASSES WERE OPENED 2 TIMES" in printed
    before, now = ((place / "summary.csv").read_text().splitlines() for place in (finished, folder))
    assert [line for line in now if not line.startswith("triplet_margin")] == before
    assert len(now) == len(before) + 6
    code, printed, complaint = run("study", "verify", folder)
    assert (code, complaint) == (0, ""), printed


def test_the_way_to_the_data_stays_behind(finished: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "study"))
    config = folder / "jobs/arcface/run0/fold0/config.yaml"
    study = folder / "study.yaml"
    study.write_text(re.sub(r"^( *)data:$", rf"\1data:\n\1  root: {tmp_path}", study.read_text(), flags=re.M))
    assert "root: null" in config.read_text()
    config.write_text(config.read_text().replace("root: null", f"root: {tmp_path}"))
    unpack_study(write_archive(StudyRecord.begun(folder), tmp_path / "toy.tar.xz"), tmp_path / "unpacked")
    files = [path for path in (tmp_path / "unpacked").rglob("*") if path.is_file()]
    assert not any(str(tmp_path) in path.read_text() for path in files)
    assert not (tmp_path / "unpacked" / config.relative_to(folder)).exists()
    assert (tmp_path / "unpacked/jobs/contrastive/run0/fold0/config.yaml").exists()


def test_an_unfinished_study_is_not_archived(finished: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "study"))
    (folder / "jobs/arcface/run1/fold0/result.json").unlink()
    with pytest.raises(UserError, match="arcface run 1 fold 0 is not done"):
        write_archive(StudyRecord.begun(folder), tmp_path / "x.tar.xz")


def hostile(archive: Path, file: Path, name: str, kind: bytes = tarfile.REGTYPE, size: int = 2) -> Path:
    """A copy of an archive with one more member."""
    with tarfile.open(archive) as old, tarfile.open(file, "w:xz") as new:
        for member in old:
            new.addfile(member, old.extractfile(member))
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname, entry.size = kind, "/etc/passwd", size if kind == tarfile.REGTYPE else 0
        new.addfile(entry, io.BytesIO(bytes(size)))
    return file


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("../outside.json", tarfile.REGTYPE, "writes outside its folder"),
        ("jobs/a/run0/fold9/result.json", tarfile.SYMTYPE, "holds a link"),
        ("jobs/arcface/run0/fold0/best.ckpt", tarfile.REGTYPE, "best.ckpt, which no archive of a study has"),
        ("my_loss.py", tarfile.REGTYPE, "my_loss.py, which no archive of a study has"),
    ],
)
def test_a_hostile_archive_leaves_nothing(name: str, kind: bytes, message: str, archive: Path, tmp_path: Path) -> None:
    file = hostile(archive, tmp_path / "hostile.tar.xz", name, kind)
    with pytest.raises(UserError, match=message):
        unpack_study(file, tmp_path / "place" / "study")
    assert [*(tmp_path / "place").iterdir()] == []


def test_results_may_shrink_more_than_photographs_and_not_without_end(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = hostile(archive, tmp_path / "large.tar.xz", "jobs/arcface/run9/fold0/result.json", size=65 << 20)
    unpack_study(large, tmp_path / "study")
    assert StudyRecord.begun(tmp_path / "study").state.to_do == []
    monkeypatch.setattr("levelfield.study.archive.MOST_BYTES", 64 << 20)
    with pytest.raises(UserError, match="unpacks to more than 64 MiB: refused"):
        unpack_study(large, tmp_path / "again")


def test_what_is_no_archive_and_a_folder_in_use_are_refused(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "not.tar.xz").write_bytes(archive.read_bytes()[:-50])
    with pytest.raises(UserError, match="not a whole zip or tar file"):
        unpack_study(tmp_path / "not.tar.xz", tmp_path / "a")
    (tmp_path / "used").mkdir()
    (tmp_path / "used/file").touch()
    with pytest.raises(UserError, match="is not empty: choose another --output"):
        unpack_study(archive, tmp_path / "used")
    with pytest.raises(UserError, match=r"none\.tar\.xz does not exist"):
        unpack_study(tmp_path / "none.tar.xz", tmp_path / "b")
