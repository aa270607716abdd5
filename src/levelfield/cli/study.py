"""`levelfield study run|resume|status|report|verify`."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from levelfield.cli.study_output import answer
from levelfield.errors import UserError, nearest
from levelfield.runtime.own_modules import find_own_modules
from levelfield.study.definition.configuration import parse_value
from levelfield.study.definition.spec import COUNTS
from levelfield.study.execution.executor import DEFAULT, executor

DESCRIPTION = """\
Compare methods under equal conditions: every method's arguments are searched on the validation folds (if the study
says so), then it is trained on each fold in each run, then the test classes are opened once and all checkpoints are
scored on them, beside the pretrained trunk without training. A study can be stopped at any moment and goes on where it
stopped; started a second time while it runs, it shares the jobs.
"""
EPILOG = """\
FILE is a study file; a bare name is sought in configs/study/. Any setting of `levelfield fit` can be given for all
jobs (--data.root DIR, --trainer.max_epochs 2), and the study's own: --folds, --runs, --seed, --threads,
--search.trials N, --search.sampler gp|tpe|random, --search.batch N, --search.prune true, --second_searches.all N.
--executor.workers N does the jobs in N processes, which take the GPUs in turn (--executor.devices [0,1]).

  levelfield study run quickstart.yaml
  levelfield study run quickstart.yaml --add-method my_loss.MyLoss
  levelfield study run own_images_quick.yaml --data.dataset.table my_images.csv
  levelfield study resume outputs/own_images_quick
"""
COMMANDS = {
    "run": "train, test and print the table",
    "resume": "go on with a study that was stopped, with the settings that it was begun with",
    "status": "show jobs done, running, failed and to do, and the time left",
    "report": "print the table again, derive its files and the page anew",
    "verify": "compute the tables again from the stored embeddings and compare",
}


class _Parser(argparse.ArgumentParser):
    """An argument parser whose mistakes are UserErrors of one line."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **settings)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{self.prog}: {message}; see {self.prog} --help")


def study_parser() -> argparse.ArgumentParser:
    """The parser of all but the dotted options."""
    usage = "levelfield study COMMAND FILE [--output DIR] [--add-method MODULE.LOSS] [--ANY.SETTING VALUE]"
    parser = _Parser(prog="levelfield study", usage=usage, description=DESCRIPTION, epilog=EPILOG)
    commands = parser.add_subparsers(dest="command", title="commands", metavar="COMMAND", required=True)
    for name, text in COMMANDS.items():
        what = "a study file, or its name in configs/study/" + ("" if name == "run" else ", or a study's folder")
        command = commands.add_parser(
            name, prog=f"levelfield study {name}", help=text, description=f"{text.capitalize()}.", epilog=EPILOG
        )
        command.add_argument("file", metavar="FILE", help=what)
        command.add_argument("--output", metavar="DIR", type=Path, help="study folder (default: outputs/<study>)")
        command.add_argument(
            "--executor", metavar="NAME", default=DEFAULT, help=f"who does the jobs (default: {DEFAULT})"
        )
        command.add_argument(
            "--add-method",
            metavar="MODULE.LOSS",
            action="append",
            default=[],
            help="compare one more loss, from the working directory or any package; repeatable",
        )
        if name == "report":
            command.add_argument(
                "--with",
                dest="others",
                metavar="DIR",
                nargs="+",
                type=Path,
                default=[],
                help="rank the methods over this study and those of these output folders",
            )
        if name in ("run", "resume"):
            command.add_argument(
                "--reopen-test", metavar="WHY", help="open the test classes again; the reason is kept and shown"
            )
            command.add_argument(
                "--mixed-versions",
                action="store_true",
                help="go on though other versions or another GPU computed what is done; it is kept and shown",
            )
            command.add_argument(
                "--test-without-failed-runs", action="store_true", help="open the test classes though runs failed"
            )
            command.add_argument(
                "--dry-run", action="store_true", help="print the jobs and the hours they would take; train nothing"
            )
    return parser


def main(argv: Sequence[str]) -> int:
    """Run `levelfield study` with `argv` (what follows `study`) and return the exit code.

    Ctrl-C prints how to go on and returns 130.

    Raises:
        UserError: a mistake; the command line prints it and exits with 2.
    """
    words, overrides = split_dotted(argv)
    parser = study_parser()
    if not words:
        words = ["--help"]
    if not words[0].startswith("-") and words[0] not in COMMANDS:
        raise UserError(f"levelfield study: no command {words[0]!r}{nearest(words[0], list(COMMANDS))}")
    arguments, unknown = parser.parse_known_args(words)
    if unknown:
        options = [
            "--output",
            "--executor",
            "--add-method",
            "--with",
            "--reopen-test",
            "--mixed-versions",
            "--dry-run",
            "--test-without-failed-runs",
            *(f"--{key}" for key in COUNTS),
        ]
        raise UserError(f"levelfield study: no option {unknown[0]!r}{nearest(unknown[0], options)}")
    find_own_modules()
    of_executor = {key[9:]: overrides.pop(key) for key in list(overrides) if key.startswith("executor.")}
    return answer(arguments, overrides, executor(arguments.executor, of_executor))


def split_dotted(argv: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Take the overrides (`--data.root DIR`, `--runs=3`) out of the words of a command.

    Raises:
        UserError: an override without a value.
    """
    rest: list[str] = []
    overrides: dict[str, Any] = {}
    words = iter(argv)
    for word in words:
        key, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or ("." not in key and key not in COUNTS):
            rest.append(word)
            continue
        if not equals:
            value = next(words, "--")
            if value.startswith("--"):
                raise UserError(f"--{key} needs a value")
        overrides[key] = parse_value(value)
    return rest, overrides
