"""The finished studies in results/GROUP/NAME/, each with an archive and summary.csv.

python scripts/results.py keep GROUP FOLDER   verifies a finished study and adds it to a group
python scripts/results.py check               verifies each archive and compares its summary.csv

NAME is the name of the folder. `levelfield study run --from` adds methods to an archive, `levelfield study report`
writes its page. An archive has no embeddings, so only `keep` computes the test scores again.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from jsonargparse import auto_cli

from levelfield.analysis.verify import verify_study
from levelfield.core.errors import UserError
from levelfield.study.archive import unpack_study, write_archive
from levelfield.study.folder import SUMMARY_FILE, StudyFolder

RESULTS = Path(__file__).resolve().parents[1] / "results"
ARCHIVE = "archive.tar.xz"


def keep(group: str, folder: Path, *, results: Path = RESULTS) -> None:
    """Write the archive and summary.csv of a finished study into a folder of a group.

    Raises:
        UserError: the study is not finished, or a check fails; then nothing is written.
    """
    study = StudyFolder.begun(folder)
    with tempfile.TemporaryDirectory() as aside:
        write_archive(study, Path(aside, ARCHIVE))
        shutil.copyfile(study.summary_file, Path(aside, SUMMARY_FILE))
        if problems := [*verify_study(study), *problems_of(Path(aside))]:
            raise UserError(f"{folder} has {len(problems)} problems, the first: {problems[0]}")
        print(shutil.copytree(aside, results / group / folder.resolve().name, dirs_exist_ok=True))


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


def check(*, results: Path = RESULTS) -> bool:
    """Print a line for each study, or its problems; returns whether there is a problem."""
    found = {}
    for kept in sorted(path.parent for path in results.rglob(ARCHIVE)):
        found[kept] = problems_of(kept)
        print(*(f"{kept.name}: {what}" for what in found[kept] or ["verified"]), sep="\n", flush=True)
    print(f"{sum(not problems for problems in found.values())} of {len(found)} studies verified")
    return any(found.values())


if __name__ == "__main__":
    try:
        sys.exit(auto_cli([keep, check]))
    except UserError as error:
        sys.exit(str(error))
