"""Puts what is kept of finished laptop studies under docs/results/laptop, from which `laptop_answer.py` makes its page.

    python scripts/laptop_results.py outputs/laptop/grocery_store     # into docs/results/laptop/grocery_store

A study is taken where `levelfield study verify` finds nothing amiss (of large sets it takes minutes to compute all test
scores again; `--tables` leaves that out, and compares the rest): its tables, its ledger and `study.tar.xz`, which
`levelfield study run --from` goes on from; of one with a search also `trials.csv` (what each trial tried, and its
validation MAP@R) and the page with two of its figures. An unfinished study is refused, and so is an archive whose
tables do not follow from it.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import shutil
import sys
import tempfile
from pathlib import Path

from laptop_sets import RESULTS

from levelfield.analysis.verify import verify_study
from levelfield.errors import UserError
from levelfield.report.page import write_report
from levelfield.storage.atomic import write_atomically
from levelfield.study.archive import unpack_study, write_archive
from levelfield.study.folder import StudyFolder

ARCHIVE, TRIALS = "study.tar.xz", "trials.csv"
# Of the page's figures those that stand beside it, for pages that show them.
FIGURES = ("scores", "differences")


def collect(folder: Path, destination: Path, scores_again: bool = True) -> None:
    """Keep what is worth keeping of a finished study.

    Args:
        scores_again: Whether the test scores are computed again from the stored embeddings.

    Raises:
        UserError: the study has not ended, or `verify` finds a problem in its folder or in the archive of it.
    """
    record = StudyFolder.begun(folder)
    if not record.summary_file.is_file():
        raise UserError(f"{folder} has not ended: it has no {record.summary_file.name}; resume the study first")
    if scores_again:
        _check(record)
    kept = [record.results_file, record.summary_file, record.ledger.path]
    if record.spec.search.trials:
        kept.append(write_report(record))
        kept += [record.report_folder / f"{name}.svg" for name in FIGURES]
    with tempfile.TemporaryDirectory() as aside:
        archive = write_archive(record, Path(aside, ARCHIVE))
        unpack_study(archive, Path(aside, "unpacked"))
        _check(StudyFolder.begun(Path(aside, "unpacked")))
        destination.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(archive, destination / ARCHIVE)
    for path in kept:
        shutil.copyfile(path, destination / path.name)
    if record.spec.search.trials:
        write_atomically(destination / TRIALS, trials_table(record))


def _check(record: StudyFolder) -> None:
    if problems := verify_study(record):
        raise UserError(
            f"{record.folder}: {len(problems)} problems, the first: {problems[0]}; mend them, then collect it"
        )


def trials_table(record: StudyFolder) -> bytes:
    """A line a trial: what it tried, as JSON, its validation MAP@R, empty where it failed; the chosen one has a 1."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["method", "trial", "map_at_r", "chosen", "settings"])
    for method in record.spec.methods:
        chosen = record.state.chosen(method)
        for trial in record.state.trials(method):
            is_chosen = int(chosen is not None and trial.number == chosen.number)
            value = "" if trial.value is None else repr(trial.value)
            writer.writerow([method, trial.number, value, is_chosen, json.dumps(trial.parameters)])
    return text.getvalue().encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="folders of finished studies")
    parser.add_argument("--to", type=Path, default=RESULTS, help="where each gets a folder of its name")
    parser.add_argument("--tables", action="store_true", help="do not compute the test scores again")
    arguments = parser.parse_args()
    for folder in arguments.folders:
        destination = arguments.to / folder.resolve().name
        try:
            collect(folder, destination, scores_again=not arguments.tables)
        except UserError as error:
            sys.exit(str(error))
        kept = {path.name: path.stat().st_size for path in sorted(destination.iterdir())}
        sizes = ", ".join(f"{name} {size / 1000:,.0f} kB" for name, size in kept.items())
        print(f"{destination}: {sum(kept.values()) / 1e6:.1f} MB ({sizes})")


if __name__ == "__main__":
    main()
