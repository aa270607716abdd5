"""A finished study as one small file, without weights and embeddings; enough to add a method to it."""

import io
import json
import lzma
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from levelfield.core.configuration import Config, init_args, read_yaml
from levelfield.core.errors import UserError
from levelfield.core.files import write_atomically, write_json
from levelfield.core.ledger import LEDGER
from levelfield.study.folder import ARCHIVED, READ_ONLY, RESULTS_FILE, SUMMARY_FILE, StudyFolder
from levelfield.study.jobs import CONFIG, RESULT, Job
from levelfield.study.same_study import check_archived
from levelfield.study.spec import MOST_JOBS, STUDY, StudySpec, row_folder

SUFFIX = ".tar.xz"
# What an archive may contain, and how much: thousands of results name the same classes and shrink to 1/250.
PART = r"(?!\.)[A-Za-z0-9_.=,@-]+"
MEMBER = rf"({STUDY}|{LEDGER}|{ARCHIVED}|{RESULTS_FILE}|{SUMMARY_FILE}|jobs/{PART}/{PART}/{PART}/({RESULT}|{CONFIG}))"
MOST_BYTES, MOST_MEMBERS = 1 << 30, MOST_JOBS
# Of one file in an archive, and of YAML, which takes 1,000 times its size to read.
MOST_OF_MEMBER, MOST_OF_YAML, MOST_OF_NAME = 16 << 20, 1 << 20, 1 << 10


def is_archive(path: Path) -> bool:
    """Whether a path is an archive of a study."""
    return path.name.endswith(SUFFIX) and path.is_file()


def write_archive(study: StudyFolder, file: Path) -> Path:
    """Write the archive of a finished study: sorted, without times, owners or the folder of the data.

    The same folder gives the same bytes with the same version of liblzma.

    Raises:
        UserError: jobs remain, a run is not tested, or a table is missing.
    """
    if missing := _missing(study):
        raise UserError(f"{study.folder}: {missing}; resume the study first")
    rows = sorted({job.method for job in study.state.results} | study.archived)
    contents = {
        STUDY: study.spec.with_configs(_without_root).to_yaml().encode(),
        ARCHIVED: json.dumps({"rows": {row: {} for row in rows}}, indent=1).encode(),
    }
    files = [study.ledger_file, study.results_file, study.summary_file]
    files += [study.test_file(*each) for each in study.state.tested_runs()]
    files += [study.folder / job.path / RESULT for job in study.state.results]
    configs = [study.folder / Job(row, "run", 0, 0).path / CONFIG for row in rows]  # for the results page
    for path in (*files, *filter(_names_no_folder, configs)):
        if not path.is_file():
            raise UserError(f"{path} is missing; levelfield study report writes it")
        contents[path.relative_to(study.folder).as_posix()] = path.read_bytes()
    stored = io.BytesIO()
    with tarfile.open(fileobj=stored, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in sorted(contents.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    write_atomically(file, lzma.compress(stored.getvalue()))
    return file


def _missing(study: StudyFolder) -> str:
    """The first job or run of a study that is not finished, in words; empty for a finished one."""
    state, tests = study.read_again(), study.tests()
    left = [f"{job} is not finished" for job in state.to_do]
    left += [f"{row} run {run} is not tested" for row, run in state.tested_runs() if (row, run) not in tests]
    return left[0] if left else ""


def _names_no_folder(config: Path) -> bool:
    """Whether a job has a configuration, and one without a local folder."""
    if not config.is_file():
        return False
    data = read_yaml(config)["data"]
    return not (data.get("root") or init_args(data.get("dataset")).get("root"))


def _without_root(config: Config) -> Config:
    """A configuration without the folder of the data, which is local to a machine."""
    data = {key: value for key, value in config["data"].items() if key != "root"}
    if arguments := init_args(data.get("dataset")):
        kept = {key: value for key, value in arguments.items() if key != "root"}
        data["dataset"] = {**data["dataset"], "init_args": kept}
    return {**config, "data": data}


def unpack_study(archive: Path, folder: Path, asked: StudySpec | None = None) -> list[str]:
    """Create a study's folder from an archive; a rejected archive leaves nothing behind.

    Args:
        asked: The user's study, which the folder is for. Without it the folder is only read: the archive may be a
            stranger's, so nothing that it names is built.

    Returns:
        The rows of the archive that are not in the user's study, and are left out.

    Raises:
        UserError: no such file, not an archive of a study or of another study, an unexpected file in it, or a folder
            that is not empty.
    """
    if not archive.is_file():
        raise UserError(f"no archive at {archive}: give one written by levelfield study archive")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is not empty: choose another --output to unpack {archive} into")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".unpacking") as aside:
        whole = Path(aside, "study")
        for name, content in _members(archive):
            (whole / name).parent.mkdir(parents=True, exist_ok=True)
            (whole / name).write_bytes(content)
        for needed in (STUDY, LEDGER, ARCHIVED):
            if not (whole / needed).is_file():
                raise UserError(f"{archive} is not an archive of a study: it has no {needed}")
        study = StudyFolder.begun(whole)
        if asked is not None:
            check_archived(asked, study.spec)
        if missing := _missing(study):  # it would be computed
            raise UserError(f"{archive} is not an archive of a study: {missing}")
        left_out = [row for row in study.spec.rows if asked is not None and row not in asked.rows]
        for row in left_out:
            shutil.rmtree(whole / "jobs" / row_folder(row), ignore_errors=True)
        rows = {row: dict[str, str]() for row in study.spec.rows if row not in left_out}
        write_json(whole / ARCHIVED, {"rows": rows} | ({READ_ONLY: True} if asked is None else {}))
        StudyFolder(whole, asked or study.spec).write_spec()
        os.replace(whole, folder)  # also an empty folder
    return left_out


def _members(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content of each file in an archive, which is rejected if it is damaged or has an unexpected file."""
    too_large = f"{archive} is larger than an archive of a study can be: rejected"
    try:
        unpacked = lzma.LZMADecompressor()
        stored = io.BytesIO(unpacked.decompress(archive.read_bytes(), MOST_BYTES))
        if not unpacked.eof:
            raise UserError(too_large) if stored.getbuffer().nbytes == MOST_BYTES else EOFError("its end is missing")
        with tarfile.open(fileobj=stored, mode="r:") as tar:
            for number, member in enumerate(tar):
                most = MOST_OF_YAML if member.name.endswith(".yaml") else MOST_OF_MEMBER
                if number == MOST_MEMBERS or member.size > most or len(member.name) > MOST_OF_NAME:
                    raise UserError(too_large)
                if not member.isreg() or not re.fullmatch(MEMBER, member.name):
                    raise UserError(f"{archive} contains {member.name}, which no archive of a study has: rejected")
                file = tar.extractfile(member)
                yield member.name, b"" if file is None else file.read()
    except (tarfile.TarError, lzma.LZMAError, EOFError, OSError) as error:
        raise UserError(f"{archive} is damaged or not an archive: {error}") from None
