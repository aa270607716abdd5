"""The engine until the command line moves: `python -m levelfield.study2 FILE --output DIR [--workers N] [--ray]`."""

import argparse
import os
import sys
from pathlib import Path

from levelfield.errors import UserError
from levelfield.runtime.own_modules import find_own_modules, working_directory_last
from levelfield.runtime.signals import Stopped, handling, stop_at_once


def main(words: list[str]) -> int:
    """Run a study and write its tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--ray", action="store_true")
    parser.add_argument("--address")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--debug", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--without-failed", action="store_true")
    parser.add_argument("--reopen-test")
    for repeated in ("--recompute", "--keep", "--add-method"):
        parser.add_argument(repeated, action="append", default=[])
    given, rest = parser.parse_known_args(words)
    study = None
    try:
        from rich.console import Console

        from levelfield.study.definition.configuration import parse_value
        from levelfield.study2.added_method import added_methods
        from levelfield.study2.executors import make_slots
        from levelfield.study2.folder import StudyFolder
        from levelfield.study2.rows import load_spec
        from levelfield.study2.run import run_study
        from levelfield.study2.study_file import find_study

        options = {key[2:]: parse_value(value) for key, _, value in (word.partition("=") for word in rest)}
        study = StudyFolder(given.output, load_spec(find_study(given.file), options, added_methods(given.add_method)))
        console = Console(width=160)
        if given.dry_run:
            from levelfield.study2.dry_run import print_jobs

            print_jobs(console, study)
            return 0
        name, more = ("ray", {"address": given.address}) if given.ray else ("local", {})
        slots = make_slots(study.spec, name, {"workers": given.workers, **more})
        machine = None
        if given.json:  # standard output is for the machine only, whatever prints, in C too
            machine = os.fdopen(os.dup(1), "w")
            os.dup2(2, 1)
        decisions = {"recompute": given.recompute, "keep": given.keep, "retest": given.reopen_test}
        with handling(stop_at_once):
            study = run_study(
                study,
                slots,
                console,
                **decisions,
                without_failed=given.without_failed,
                machine=machine,
                debug=given.debug,
            )
        write_tables(study)
    except (KeyboardInterrupt, Stopped) as stop:
        if study is None:
            raise
        known = study.read_again()
        done = f"{len(known.results)} of {len(known.jobs)} jobs done; the same command goes on"
        print(f"{str(stop) or 'stopped'} with {done}", file=sys.stderr)
        return stop.code if isinstance(stop, Stopped) else 130  # type: ignore[return-value]
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def write_tables(study: "StudyFolder") -> None:  # type: ignore[name-defined]  # noqa: F821
    """`results.csv` and `summary.csv`, from the results."""
    from levelfield.analysis.results import ResultRow, SummaryRow, collect_rows, summarise, to_csv
    from levelfield.storage.atomic import write_atomically

    rows = collect_rows(study, study.tests())
    write_atomically(study.results_file, to_csv(rows, ResultRow))
    write_atomically(study.summary_file, to_csv(summarise(rows), SummaryRow))


if __name__ == "__main__":
    working_directory_last()
    find_own_modules()
    sys.exit(main(sys.argv[1:]))
