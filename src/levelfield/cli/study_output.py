"""The actions of `levelfield study` and their output."""

import argparse
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple, TextIO

from rich.console import Console

from levelfield.analysis.results import collect_rows, summarise
from levelfield.analysis.status import status, status_lines
from levelfield.cli.options import without_options
from levelfield.core.configuration import first_difference
from levelfield.core.errors import UserError
from levelfield.core.signals import Stopped
from levelfield.core.terminal import say
from levelfield.experiment import Study
from levelfield.report.table import TABLE_WIDTH
from levelfield.study.archive import SUFFIX, is_archive, unpack_study
from levelfield.study.dry_run import print_jobs
from levelfield.study.replicates import replicates_of
from levelfield.study.same_study import check_archived, with_rows_of
from levelfield.study.study_file import find_study

# Options, with the number of their values, that the printed next command leaves out.
OF_ONE_RUN = {
    **dict.fromkeys(("--reopen-test", "--from", "--recompute"), 1),
    **dict.fromkeys(("--stop-here", "--test-without-failed-runs", "--json", "--debug"), 0),
}
# What follows a study whose scores show how levelfield works, and rank no losses.
NEXT = {
    "smoke": "next: see what training brings, in four minutes: levelfield study run quickstart",
    "quickstart": "next: a fair comparison on photographs, 40 minutes: "
    "levelfield data prepare grocery_store --root data && "
    "levelfield study run fair_groceries --data.root data",
}


class Ending(NamedTuple):
    """The end of another command that runs a study.

    Attributes:
        again: The words that continue it after a stop.
        conclude: Returns the lines above and below the path of the page.
    """

    again: Sequence[str]
    conclude: Callable[[Study], tuple[list[str], list[str]]]


def answer(arguments: argparse.Namespace, ending: Ending | None = None) -> int:
    """Run a command, print its result, and return the exit code."""
    with _for_machines(arguments.json) as machine:
        console = Console()
        if not console.is_terminal:
            console = Console(width=TABLE_WIDTH)
        if arguments.command in ("status", "report", "table", "verify") and is_archive(Path(arguments.file)):
            return _answer_of_archive(console, arguments, machine)
        if arguments.command in ("run", "resume"):
            return _run(console, _to_run(console, arguments), arguments, ending, machine)
        return _answer_of(console, Study(arguments.file, output=arguments.output), arguments, machine)


@contextmanager
def _for_machines(json_lines: bool) -> Iterator[TextIO | None]:
    """Keep standard output for lines of JSON; all other output, also of C code, goes to standard error."""
    if not json_lines:
        yield None
        return
    sys.stdout.flush()
    own = os.dup(1)
    os.dup2(2, 1)
    try:
        with os.fdopen(os.dup(own), "w") as machine:
            yield machine
    finally:
        sys.stdout.flush()
        os.dup2(own, 1)
        os.close(own)


def _answer_of_archive(console: Console, arguments: argparse.Namespace, machine: TextIO | None) -> int:
    """Unpack an archive and run the command on the folder."""
    if arguments.command == "report" and arguments.output is None:
        raise UserError(f"report {arguments.file}: give --output DIR, a folder for the archive's content and its page")
    with tempfile.TemporaryDirectory() as aside:
        folder = arguments.output or Path(aside, Path(arguments.file).name.removesuffix(SUFFIX))
        unpack_study(Path(arguments.file), folder)
        return _answer_of(console, Study(folder), arguments, machine)


def _answer_of(console: Console, study: Study, arguments: argparse.Namespace, machine: TextIO | None) -> int:
    place = arguments.file if is_archive(Path(arguments.file)) else str(study.folder)
    if arguments.command == "status" and machine is not None:
        print(json.dumps(status(study.record())), file=machine, flush=True)
    elif arguments.command == "status":
        say(*(line.replace(str(study.folder), place) for line in status_lines(study.record())), console=console)
    elif arguments.command == "report":
        console.print(study.table(), highlight=False)
        _print_page(console, study, again=True)
        if arguments.figures is not None:
            say(*map(str, study.figures(arguments.figures)), console=console)
        say(*_next(study, arguments), console=console)
    elif arguments.command == "table":
        print(study.paper_table(arguments.format))
    elif arguments.command == "verify":
        return _verify(console, study, place)
    else:
        say(str(study.archive(arguments.to)), console=console)
    return 0


def _to_run(console: Console, arguments: argparse.Namespace) -> Study:
    """The study of a file, started from an archive if one is given; `resume` uses the settings of its folder."""
    if is_archive(Path(arguments.file)):
        raise UserError(
            f"{arguments.file} is an archive: only status, report and verify read it. To train more, start a study "
            f"from it: levelfield study run FILE --from {arguments.file}"
        )
    file = find_study(arguments.file) if arguments.command == "run" else arguments.file
    study = Study(file, output=arguments.output, options=arguments.overrides, add_methods=arguments.add_method)
    if arguments.command == "resume" and study.file is not None and study.asked.spec_file.is_file():
        asked, study = study, Study(study.folder, options=arguments.overrides)
        say(*_differing_settings(asked, study), console=console)
    if arguments.archive is not None and study.asked.spec_file.is_file():
        say(f"note: --from {arguments.archive} has no effect: {study.folder} exists already", console=console)
    elif arguments.archive is not None and not arguments.dry_run:
        spec = study.asked.spec
        unpack_study(arguments.archive, study.folder, lambda archived: check_archived(spec, archived), spec.rows)
    return study


def _differing_settings(asked: Study, begun: Study) -> list[str]:
    """A note that a study continues with the settings in its folder, if its file has others."""
    settings = with_rows_of(asked.asked.spec, begun.asked.spec, begun.asked.spec.methods)
    difference = first_difference(asdict(begun.asked.spec), asdict(settings))
    if difference is None:
        return []
    key, there, here = difference
    return [f"continues with {begun.asked.spec_file}: {key} is {there!r} there, {here!r} in {asked.file}"]


def _verify(console: Console, study: Study, place: str) -> int:
    from levelfield.analysis.verify import remarks

    problems, record = study.verify(), study.record()
    stored = "results" if record.archived >= {*record.spec.rows} else "embeddings and results"
    follow = f"{place}: results.csv and summary.csv match the stored {stored}, to the last bit"
    say(*(problems or [follow]), *remarks(record), console=console)
    return 2 if problems else 0


def _run(
    console: Console, study: Study, arguments: argparse.Namespace, ending: Ending | None, machine: TextIO | None
) -> int:
    if arguments.dry_run:
        print_jobs(console, study.asked)
        return 0
    say(str(study), console=console)
    try:
        study.run(
            None,
            arguments.executor,
            options=arguments.options,
            recompute=arguments.recompute,
            reopen_test=arguments.reopen_test,
            test_without_failed_runs=arguments.test_without_failed_runs,
            stop_here=arguments.stop_here,
            console=console,
            machine=machine,
            debug=arguments.debug,
        )
    except (KeyboardInterrupt, Stopped) as stop:
        states = [part.read_again() for part in replicates_of(study.asked, begun=False)]
        again = ["levelfield", "study", *arguments.words] if ending is None else list(ending.again)
        finished, jobs = (sum(map(len, each)) for each in zip(*((s.results, s.jobs) for s in states), strict=True))
        done = f"stopped with {finished} of {jobs} jobs done"
        print(f"{done}; continue with: {shlex.join(again)}", file=sys.stderr)
        if isinstance(stop, Stopped):
            raise  # the command line names the signal
        return 130
    above, below = ending.conclude(study) if ending is not None else ([], _next(study, arguments))
    if ending is None:
        console.print(study.table(), highlight=False)
    say(*above, console=console)
    _print_page(console, study, study.asked.had_work or ending is not None)  # it may decide otherwise
    if machine is not None:
        rows = [asdict(row) for row in summarise(collect_rows(study.asked))]
        print(json.dumps({"event": "summary", "rows": rows}), file=machine, flush=True)
    say(*below, console=console)
    return 0


def _next(study: Study, arguments: argparse.Namespace) -> list[str]:
    if arguments.command != "run" or arguments.add_method or study.file is None:
        return [f"next: check all numbers: {shlex.join(['levelfield', 'study', 'verify', str(study.folder)])}"]
    if study.asked.spec.name in NEXT:
        return [NEXT[study.asked.spec.name]]
    again = shlex.join(["levelfield", "study", *without_options(arguments.words, OF_ONE_RUN), "--add-method"])
    own, example = Path("my_loss.py"), Path("examples/my_loss.py")  # the example is in a clone
    if own.is_file() or example.is_file():
        copy = "" if own.is_file() else f"cp {example} . && "
        return [f"next: compare your own loss: {copy}{again} my_loss.MyLoss"]
    other = next((name for name in ("supcon", "circle", "arcface") if name not in study.asked.spec.methods), "margin")
    return [f"next: compare another loss (yours: my_loss.MyLoss, docs/tutorial_add_a_loss.md): {again} {other}"]


def _print_page(console: Console, study: Study, again: bool) -> None:
    """Print the path of the page, and write page and tables if requested or missing."""
    record = study.record()
    page = record.report_folder / "index.html"
    if again or not page.is_file():
        study.report()
    say(f"page: {study.folder / page.relative_to(record.folder)}", console=console)
