"""`levelfield study run|resume|status|report|verify|archive`."""

import json
import shlex
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from levelfield.analysis.results import collect_rows, summarise
from levelfield.analysis.verdict import decided
from levelfield.analysis.verify import remarks
from levelfield.cli.options import dotted
from levelfield.core.errors import UserError
from levelfield.core.terminal import say
from levelfield.experiment import Study
from levelfield.report.table import TABLE_WIDTH
from levelfield.study.archive import SUFFIX, is_archive, unpack_study
from levelfield.study.jobs import study_jobs
from levelfield.study.replicates import replicates_of
from levelfield.study.spec import STUDY

# Options of one run: a command with one of them is not printed again.
OF_ONE_RUN = {"--reopen-test", "--from", "--recompute", "--stop-here"}
# What follows a study whose scores show how levelfield works, and rank no losses.
NEXT = {
    "smoke": "next: see what training brings, in four minutes: levelfield study run quickstart",
    "quickstart": "next: a fair comparison on photographs, 40 minutes: levelfield data prepare grocery_store --root "
    "data && levelfield study run fair_groceries --data.root data",
}
Conclude = Callable[[Study], list[str]]  # of another command that runs a study: the last lines


def with_overrides(given: Namespace) -> Namespace:
    """`overrides` gets the settings for all methods of `run` and `resume`, `options` the executor's."""
    asked = dotted(given.config, given.settings) | ({"metrics": given.metrics} if given.metrics else {})
    given.options = {key[9:]: asked.pop(key) for key in list(asked) if key.startswith("executor.")}
    given.overrides, given.executor = asked, given.executor or "local"
    return given


def main(given: Namespace) -> int:
    """Run `levelfield study`, print the result, and return the exit code."""
    if given.command in ("run", "resume"):
        return run(with_overrides(given))
    console = Console(width=None if sys.stdout.isatty() else TABLE_WIDTH)
    if given.command == "archive" or not is_archive(Path(given.file)):
        return _answer(console, Study(given.file, output=given.output), given)
    if given.command == "report" and given.output is None:
        raise UserError(f"report {given.file}: give --output DIR, a folder for the archive's content and its page")
    with TemporaryDirectory() as aside:
        folder = given.output or Path(aside, Path(given.file).name.removesuffix(SUFFIX))
        unpack_study(Path(given.file), folder)
        return _answer(console, Study(folder), given, given.file)


def run(given: Namespace, conclude: Conclude | None = None) -> int:
    """Run or continue a study, print the result, and return the exit code.

    Args:
        conclude: of another command that runs a study: the last lines.
    """
    console = Console(width=None if sys.stdout.isatty() else TABLE_WIDTH, stderr=given.json)
    study = _to_run(console, given)
    if given.dry_run:
        print_jobs(console, study)
        return 0
    say(str(study), console=console)
    try:
        study.run(
            None,
            given.executor,
            options=given.options,
            recompute=given.recompute,
            reopen_test=given.reopen_test,
            stop_here=given.stop_here,
            console=console,
            debug=given.debug,
            replan=getattr(given, "replan", None),
        )
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"continue with: {shlex.join(['levelfield', *given.words])}") from None
    last = conclude(study) if conclude else _next(study, given)
    console.print(study.table(), highlight=False)
    page = study.folder / "report/index.html"
    if study.asked.had_work or conclude is not None or not page.is_file():  # a conclusion may be another one
        study.report()
    say(f"page: {page}", console=console)
    say(*last, console=console)
    if given.json:
        rows = [asdict(row) for row in summarise(collect_rows(study.asked))]
        print(json.dumps({"decision": decided(study.record()), "summary": rows}))
    return 0


def _answer(console: Console, study: Study, given: Namespace, archive: str = "") -> int:
    if given.command == "status":
        place = archive or str(study.folder)
        say(*(line.replace(str(study.folder), place) for line in study.status()), console=console)
    elif given.command == "report":
        console.print(study.table(), highlight=False)
        study.report()
        say(f"page: {study.folder / 'report/index.html'}", console=console)
        if given.figures is not None:
            say(*map(str, study.figures(given.figures)), console=console)
        say(*_next(study, given), console=console)
    elif given.command == "archive":
        say(str(study.archive()), console=console)
    else:
        problems, record = study.verify(), study.record()
        stored = "results" if record.archived >= {*record.spec.rows} else "embeddings and results"
        match = f"{archive or study.folder}: results.csv and summary.csv match the stored {stored}, to the last bit"
        say(*(problems or [match]), *remarks(record), console=console)
        return 2 if problems else 0
    return 0


def _to_run(console: Console, given: Namespace) -> Study:
    """The study of a file, started from an archive if one is given; `resume` uses the settings of its folder."""
    if is_archive(Path(given.file)):
        raise UserError(
            f"{given.file} is an archive: only status, report and verify read it. To train more, start a study from "
            f"it: levelfield study run FILE --from {given.file}"
        )
    if given.command == "run" and Path(given.file, STUDY).is_file():
        raise UserError(f"{given.file} is the folder of a study; continue it: levelfield study resume {given.file}")
    study = Study(
        given.file, output=given.output, options=given.overrides, add_methods=getattr(given, "add_method", ())
    )
    if given.command == "resume" and study.asked.spec_file.is_file():
        study = Study(study.folder, options=given.overrides)
    archive = getattr(given, "from", None)
    if archive is None or given.dry_run:
        return study
    if study.asked.spec_file.is_file():
        say(f"note: --from {archive} has no effect: {study.folder} exists already", console=console)
    else:
        parts = replicates_of(study.asked, begun=False)
        files = [archive] if len(parts) == 1 else [archive / part.folder.name / f"archive{SUFFIX}" for part in parts]
        found = [pair for pair in zip(files, parts, strict=True) if pair[0].is_file()] or [(archive, study.asked)]
        left_out = dict.fromkeys(row for file, part in found for row in unpack_study(file, part.folder, part.spec))
        study.asked.write_spec()
        if left_out:
            say(f"note: left out, because the study does not have them: {', '.join(left_out)}", console=console)
    return study


def print_jobs(console: Console, study: Study) -> None:
    """Print the jobs of each row, and how many are finished; nothing is built."""
    spec = study.asked.spec
    jobs = Counter((job.method, job.stage) for job in study_jobs(spec))
    done = Counter(job.method for job in study.asked.stored)
    say(str(study), console=console)
    for row in spec.rows:
        searched = f"{jobs[row, 'trial']:,} jobs in the search, " if spec.trials(row) else ""
        say(f"  {row}: {searched}{jobs[row, 'run']:,} in the runs; {done[row]:,} done", console=console)


def _next(study: Study, given: Namespace) -> list[str]:
    of_one_run = OF_ONE_RUN & {word.partition("=")[0] for word in given.words}
    if given.command != "run" or given.add_method or study.file is None or of_one_run:
        return [f"next: check all numbers: {shlex.join(['levelfield', 'study', 'verify', str(study.folder)])}"]
    if study.asked.spec.name in NEXT:
        return [NEXT[study.asked.spec.name]]
    again = shlex.join(["levelfield", *given.words, "--add-method"])
    other = next((name for name in ("supcon", "circle", "arcface") if name not in study.asked.spec.methods), "margin")
    return [f"next: compare another loss (yours: my_loss.MyLoss, docs/tutorial_add_a_loss.md): {again} {other}"]
