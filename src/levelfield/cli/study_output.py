"""What `levelfield study` does and prints once its words are read."""

import argparse
import json
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from rich.console import Console

from levelfield.analysis.results import collect_rows, summarise
from levelfield.analysis.selection import search_lines
from levelfield.analysis.verdicts import verdict_lines
from levelfield.cli.command_parser import without_options
from levelfield.cli.study_status import show_status
from levelfield.errors import UserError
from levelfield.experiment import Study
from levelfield.report.ranks_page import write_ranks
from levelfield.report.table import TABLE_WIDTH
from levelfield.runtime.imports import quick_imports
from levelfield.runtime.signals import Stopped
from levelfield.study.archive import SUFFIX, is_archive, unpack_study
from levelfield.study.begun import said_difference
from levelfield.study.definition.study_file import find_study
from levelfield.study.definition.sweep import without_value
from levelfield.study.execution.executor import Executor, Submitted

# What a dry run, which does no job, has no use for.
OF_JOBS = {
    "--from": "archive",
    "--reopen-test": "reopen_test",
    "--mixed-versions": "mixed_versions",
    "--test-without-failed-runs": "test_without_failed_runs",
}
# More pairs than these are told in a line a method: the table stays in sight.
SENTENCES_ON_SCREEN = 10
# Options, with the number of their values, that the command which adds a method has of its own or does without.
OF_ONE_RUN = {"--output": 1, "--reopen-test": 1, "--from": 1, "--json": 0}


class Ending(NamedTuple):
    """How a command that runs a study ends, if it is not `levelfield study` itself.

    Attributes:
        again: The words that continue it after a stop.
        conclude: Gives the lines above a finished study's table, and those below it.
    """

    again: Sequence[str]
    conclude: Callable[[Study], tuple[list[str], list[str]]]


def answer(arguments: argparse.Namespace, options: Mapping[str, Any], executor: Executor) -> int:
    """Do what a command asks for, print what came of it, and return the exit code."""
    machine = sys.stdout if arguments.json else None
    with redirect_stdout(sys.stderr) if machine else nullcontext():  # lines for machines are alone there
        return _answer(arguments, options, executor, machine)


def _answer(
    arguments: argparse.Namespace, options: Mapping[str, Any], executor: Executor, machine: TextIO | None
) -> int:
    console = Console()
    if not console.is_terminal:
        console = Console(width=TABLE_WIDTH)
    if arguments.command in ("status", "report", "verify") and is_archive(Path(arguments.file)):
        return _answer_of_archive(console, arguments, options, executor, machine)
    study = _asked(console, arguments, options)
    return _answer_of(console, study, arguments, executor, machine)


def _answer_of_archive(
    console: Console,
    arguments: argparse.Namespace,
    options: Mapping[str, Any],
    executor: Executor,
    machine: TextIO | None,
) -> int:
    """What is asked of an archive is asked of a folder that it is unpacked into."""
    if arguments.add_method or options:
        raise UserError(f"{arguments.file} is an archive: begin a study with it, levelfield study run FILE --from ...")
    if arguments.command == "report" and arguments.output is None:
        raise UserError(f"report {arguments.file}: say where it is unpacked and the page written: --output DIR")
    with tempfile.TemporaryDirectory() as aside:
        folder = arguments.output or Path(aside, Path(arguments.file).name.removesuffix(SUFFIX))
        unpack_study(Path(arguments.file), folder)
        return _answer_of(console, Study(folder), arguments, executor, machine)


def _answer_of(
    console: Console, study: Study, arguments: argparse.Namespace, executor: Executor, machine: TextIO | None
) -> int:
    if arguments.command == "status":
        show_status(console, study, arguments.watch, machine)
    elif arguments.command == "report":
        _print_study(console, study)
        if arguments.figures is not None:
            _print_lines(console, list(map(str, study.figures(arguments.figures))))
        if arguments.others:
            _print_lines(console, [str(write_ranks([study.folder, *arguments.others], study.record().report_folder))])
    elif arguments.command == "verify":
        return _verify(console, study)
    elif arguments.command == "archive":
        _print_lines(console, [str(study.archive(arguments.to))])
    elif arguments.dry_run:
        with quick_imports():
            from levelfield.study.dry_run.costs import dry_run

        return dry_run(console, study.asked.spec)
    else:
        return _run(console, study, executor, arguments, machine)
    return 0


def _asked(console: Console, arguments: argparse.Namespace, options: Mapping[str, Any]) -> Study:
    """The study of the file or folder; one that is resumed goes on with its folder's settings, which is said."""
    # `run` begins a study as its file says, and takes no folder.
    if is_archive(Path(arguments.file)):
        raise UserError(
            f"{arguments.file} is an archive, which status, report and verify take; to train more, begin a study with "
            f"it: levelfield study run FILE --from {arguments.file}"
        )
    file = find_study(arguments.file) if arguments.command == "run" else arguments.file
    words = {"options": options, "add_methods": arguments.add_method}
    study = Study(file, output=arguments.output, **words)
    if arguments.dry_run:
        in_vain = [option for option, name in OF_JOBS.items() if getattr(arguments, name)]
        in_vain += [f"--executor.{key}" for key in arguments.options]
        if in_vain:
            _print_lines(console, [f"note: --dry-run does no job: passed over are {', '.join(in_vain)}"])
    elif arguments.archive is not None and study.asked.definition_file.is_file():
        _print_lines(console, [f"note: --from {arguments.archive} is passed over: {study.folder} has begun"])
    elif arguments.archive is not None:
        unpack_study(arguments.archive, study.folder)
    if arguments.command != "resume" or study.file is None or not study.asked.definition_file.is_file():
        return study
    if not set(study.added) <= set(map(without_value, study.record().spec.methods)):
        return study
    _print_lines(console, said_difference(study.asked, study.file))
    return Study(study.folder, **words)


def _verify(console: Console, study: Study) -> int:
    from levelfield.analysis.verify import remarks

    problems = study.verify()
    follow = "results.csv and summary.csv follow from the stored embeddings and results, to the last bit"
    _print_lines(console, [*(problems or [f"{study.folder}: {follow}"]), *remarks(study.record())])
    return 2 if problems else 0


def _run(
    console: Console, study: Study, executor: Executor, arguments: argparse.Namespace, machine: TextIO | None
) -> int:
    _print_lines(console, [str(study), *_devices_in_vain(arguments.options.get("devices"))])
    try:
        study.run(
            executor=executor,
            reopen_test=arguments.reopen_test,
            mixed_versions=arguments.mixed_versions,
            test_without_failed_runs=arguments.test_without_failed_runs,
            console=console,
            machine=machine,
        )
    except Submitted as submitted:
        _print_lines(console, [str(submitted)])
        return 0
    except (KeyboardInterrupt, Stopped) as stop:
        state = study.asked.read_again()
        words = ["levelfield", "study", "resume", str(study.folder)]
        words += ["--reopen-test", arguments.reopen_test] if arguments.reopen_test else []
        words += ["--test-without-failed-runs"] if arguments.test_without_failed_runs else []
        words += executor.words()
        if arguments.ending is not None:
            words = list(arguments.ending.again)
        print(
            f"stopped with {len(state.results)} of {len(state.jobs)} jobs done; go on with: {shlex.join(words)}",
            file=sys.stderr,
        )
        if isinstance(stop, Stopped):
            raise  # the command line says by which signal, and has SLURM requeue the job
        return 130
    above, below = arguments.ending.conclude(study) if arguments.ending is not None else ([], _next(study, arguments))
    _print_lines(console, above)
    _print_study(console, study)
    if machine is not None:
        rows = [asdict(row) for row in summarise(collect_rows(study.asked))]
        print(json.dumps({"event": "summary", "rows": rows}), file=machine, flush=True)
    _print_lines(console, below)
    return 0


def _next(study: Study, arguments: argparse.Namespace) -> list[str]:
    if arguments.add_method or study.file is None:
        return []
    again = ["levelfield", "study", *without_options(arguments.words, OF_ONE_RUN), "--add-method", "my_loss.MyLoss"]
    again += ["--output", str(study.folder), "--reopen-test", "my loss"]  # another folder would train all methods again
    return [f"next: your own loss beside these: {shlex.join(again)}"]


def _devices_in_vain(devices: Any) -> list[str]:
    if devices is None:
        return []
    import torch

    in_vain = torch.cuda.device_count() == 0  # to ask whether CUDA is there would begin it, with all devices
    return [f"note: --executor.devices {devices} is passed over: CUDA finds no GPU here"] * in_vain


def _print_study(console: Console, study: Study) -> None:
    """The comparison table with what must be said beside it, and where the numbers lie."""
    console.print(study.table())
    page, record = study.report(), study.record()
    places = f"{record.results_file}, {record.summary_file}, {page}"
    verdicts = verdict_lines(collect_rows(record), record.spec, SENTENCES_ON_SCREEN)
    _print_lines(console, [*search_lines(record), *verdicts, places])


def _print_lines(console: Console, lines: Sequence[str]) -> None:
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)
