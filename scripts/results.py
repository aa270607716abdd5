"""The finished studies in results/GROUP/NAME/, each with an archive and summary.csv.

python scripts/results.py keep GROUP FOLDER...   verifies finished studies and adds each to a group
python scripts/results.py check                  verifies each archive and compares its summary.csv

NAME is the name of the folder. `levelfield study run --from` adds methods to an archive, `levelfield study report`
writes its page. An archive has no embeddings, so only `keep` computes the test scores again.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from levelfield.analysis.verify import verify_study
from levelfield.core.errors import UserError
from levelfield.study.archive import unpack_study, write_archive
from levelfield.study.folder import SUMMARY_FILE, StudyFolder

RESULTS = Path(__file__).resolve().parents[1] / "results"
ARCHIVE = "archive.tar.xz"


def keep(folder: Path, results: Path) -> Path:
    """Write the archive and summary.csv of a finished study into a folder of `results`; returns it.

    Raises:
        UserError: the study is not finished, or a check fails; then nothing is written.
    """
    study = StudyFolder.begun(folder)
    with tempfile.TemporaryDirectory() as aside:
        write_archive(study, Path(aside, ARCHIVE))
        shutil.copyfile(study.summary_file, Path(aside, SUMMARY_FILE))
        if problems := [*verify_study(study), *problems_of(Path(aside))]:
            raise UserError(f"{folder} has {len(problems)} problems, the first: {problems[0]}")
        return Path(shutil.copytree(aside, results / folder.resolve().name, dirs_exist_ok=True))


def problems_of(kept: Path) -> list[str]:
    """Problems in the archive of a study, and a difference between its summary.csv and the archive."""
    with tempfile.TemporaryDirectory() as aside:
        try:
            unpack_study(kept / ARCHIVE, Path(aside, kept.name))
            study = StudyFolder.begun(Path(aside, kept.name))
            problems = verify_study(study)
        except UserError as error:
            return [str(error)]
        summary = kept / SUMMARY_FILE
        if not summary.is_file() or summary.read_bytes() != study.summary_file.read_bytes():
            problems.append(f"{SUMMARY_FILE} differs from {ARCHIVE}")
        return problems


def check(results: Path = RESULTS) -> int:
    """Print one line per study, or its problems; returns the number of studies with problems."""
    studies = sorted(path.parent for path in results.rglob(ARCHIVE))
    damaged = 0
    for kept in studies:
        problems = problems_of(kept)
        damaged += bool(problems)
        print(*(f"{kept.name}: {what}" for what in problems or ["verified"]), sep="\n", flush=True)
    print(f"{len(studies) - damaged} of {len(studies)} studies verified")
    return damaged


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    keeping = commands.add_parser("keep")
    keeping.add_argument("group", metavar="GROUP")
    keeping.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    commands.add_parser("check")
    arguments = parser.parse_args()
    if arguments.command == "check":
        return int(check() > 0)
    for folder in arguments.folders:
        kept = keep(folder, RESULTS / arguments.group)
        print(f"{kept}: {sum(path.stat().st_size for path in kept.iterdir()) / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        sys.exit(str(error))
