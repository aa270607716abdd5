"""A finished study as one small file: its definition, ledger, results and tables, without weights and embeddings."""

import io
import json
import lzma
import os
import re
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from levelfield.errors import UserError
from levelfield.storage.atomic import write_atomically
from levelfield.storage.ledger import LEDGER
from levelfield.study.definition.configuration import Config, init_args, read_yaml
from levelfield.study.definition.spec import STUDY, StudySpec
from levelfield.study.environment import MIXED
from levelfield.study.jobs.job import CONFIG, RESULT, folds_of, method_runs
from levelfield.study.record import ARCHIVED, StudyRecord
from levelfield.study.tested import read_tests, tested_path

SUFFIX = ".tar.xz"
# Thousands of results name the same hundreds of classes: they shrink to a 250th.
MOST_BYTES = 1 << 30
# All that an archive may hold.
MEMBER = rf"({STUDY}|{LEDGER}|{ARCHIVED}|{MIXED}|results\.csv|summary\.csv|jobs/[^/]+/[^/]+/[^/]+/({RESULT}|{CONFIG}))"


def is_archive(path: Path) -> bool:
    return path.name.endswith(SUFFIX) and path.is_file()


def write_archive(record: StudyRecord, file: Path) -> Path:
    """Write the archive of a finished study: sorted, without times, owners or the way to the data.

    The same folder gives the same bytes with the same version of liblzma.

    Raises:
        UserError: jobs are to do, a run is not tested, or a table is missing.
    """
    if to_do := record.read_again().to_do:
        raise UserError(f"{record.folder}: {to_do[0]} is not done; resume the study, then archive it")
    tests = read_tests(record)
    for method, run in record.state.tested_runs():
        if (method, run) not in tests:
            raise UserError(f"{record.folder}: {method} run {run} is not tested; resume the study, then archive it")
    stored = io.BytesIO()
    with tarfile.open(fileobj=stored, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in sorted(_contents(record)):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    write_atomically(file, lzma.compress(stored.getvalue()))
    return file


def _contents(record: StudyRecord) -> Iterator[tuple[str, bytes]]:
    folder, spec = record.folder, record.spec
    methods = {job.method for job in record.state.results} | set(record.archived)
    methods |= {name for name, other in spec.trained_as.items() if other in methods}
    yield STUDY, yaml.safe_dump(_without_root(spec), sort_keys=False).encode()
    yield ARCHIVED, json.dumps({"methods": sorted(methods)}, indent=1).encode()
    tables = [record.ledger.path, record.results_file, record.summary_file]
    tested = [folder / tested_path(*each) for each in record.state.tested_runs()]
    results = [folder / job.path / RESULT for job in record.state.results]
    # One configuration a method, for what a page says of it.
    configs = [
        folder / job.path / CONFIG for each in method_runs(spec) if each[1] == 0 for job in folds_of(spec, *each)
    ]
    mixed = [path for path in (folder / MIXED,) if path.is_file()]
    for path in {*tables, *tested, *results, *mixed, *filter(_is_anybodys, configs)}:
        if not path.is_file():
            raise UserError(f"{path} is missing; `levelfield study report` writes a study's tables")
        yield path.relative_to(folder).as_posix(), path.read_bytes()


def _is_anybodys(config: Path) -> bool:
    """Whether a job's configuration is there and does not say where the data lie on this machine."""
    return config.is_file() and not any(place.get("root") for place in _data_places(read_yaml(config)))


def _data_places(config: Config) -> list[Config]:
    return [config["data"], init_args(config["data"].get("dataset"))]


def _without_root(spec: StudySpec) -> dict[str, Any]:
    """The definition without the way to the data, which is a machine's own."""
    plain = spec.to_dict()
    for config in plain["methods"].values():
        for place in _data_places(config):
            place.pop("root", None)
    return plain


def unpack_study(archive: Path, folder: Path) -> None:
    """Begin a study's folder with what an archive holds.

    Raises:
        UserError: no such file, no archive of a study, a file in it that none has, or a folder that is not empty.
    """
    if not archive.is_file():
        raise UserError(f"{archive} does not exist; give an archive that `levelfield study archive` wrote")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is not empty: choose another --output to unpack {archive} into")
    folder.parent.mkdir(parents=True, exist_ok=True)
    from levelfield.data.extract import unpack  # with torch, which `study status` can spare

    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".unpacking") as aside:
        whole = Path(aside, "study")
        whole.mkdir()
        unpack(archive, whole, "", lambda there, all_bytes: None, always_allowed=MOST_BYTES)
        for path in sorted(path for path in whole.rglob("*") if path.is_file()):
            name = path.relative_to(whole).as_posix()
            if not re.fullmatch(MEMBER, name):
                raise UserError(f"{archive} holds {name}, which no archive of a study has: refused")
        for needed in (STUDY, LEDGER, ARCHIVED):
            if not (whole / needed).is_file():
                raise UserError(f"{archive} is no archive of a study: it has no {needed}")
        StudyRecord.begun(whole)
        if folder.is_dir():
            folder.rmdir()
        os.replace(whole, folder)
