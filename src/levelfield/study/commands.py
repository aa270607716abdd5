"""`levelfield study run|resume|status|report`."""

import argparse
import importlib
import inspect
import json
import re
import shlex
import sys
import time
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console

from levelfield.errors import UserError
from levelfield.report.table import comparison_table, footnotes, print_report
from levelfield.study.conditions import differing_conditions
from levelfield.study.configuration import Config, nearest, parse_value
from levelfield.study.jobs import done_jobs, study_jobs
from levelfield.study.ledger import Ledger
from levelfield.study.lock import running
from levelfield.study.progress import duration, seconds_left
from levelfield.study.results import ResultRow, method_runs, read_tests, summarise, write_tables
from levelfield.study.spec import BASELINE, COUNTS, StudySpec, load_spec, spec_from_yaml

STUDY_FILES = Path("configs/study")
TABLE_WIDTH = 120

DESCRIPTION = """\
Compare methods under equal conditions: every method is trained on each fold in each run, then the test classes are
opened once and all checkpoints are scored on them, beside the pretrained trunk without training. A study can be
stopped at any moment and goes on where it stopped.
"""
EPILOG = """\
FILE is a study file; a bare name is sought in configs/study/. Any setting of `levelfield fit` can be given for all
jobs (--data.root DIR, --trainer.max_epochs 2), and the study's own: --folds, --runs, --seed, --threads.

  levelfield study run quickstart.yaml
  levelfield study run quickstart.yaml --add-method my_loss.MyLoss
  levelfield study run own_images_quick.yaml --data.dataset.table my_images.csv
"""
COMMANDS = {
    "run": "train, test and print the table",
    "resume": "go on with a study that was stopped",
    "status": "show jobs done, running and to do, and the time left",
    "report": "print the table again, derive its files anew",
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
        command = commands.add_parser(
            name, prog=f"levelfield study {name}", help=text, description=f"{text.capitalize()}.", epilog=EPILOG
        )
        command.add_argument("file", metavar="FILE", help="a study file, or its name in configs/study/")
        command.add_argument("--output", metavar="DIR", type=Path, help="study folder (default: outputs/<study>)")
        command.add_argument(
            "--add-method",
            metavar="MODULE.LOSS",
            action="append",
            default=[],
            help="compare one more loss, from the working directory or any package; repeatable",
        )
        if name in ("run", "resume"):
            command.add_argument(
                "--reopen-test", metavar="WHY", help="open the test classes again; the reason is kept and shown"
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
        options = ["--output", "--add-method", "--reopen-test", *(f"--{key}" for key in COUNTS)]
        raise UserError(f"levelfield study: no option {unknown[0]!r}{nearest(unknown[0], options)}")
    file = find_study(arguments.file)
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    added = dict(method_of_loss(path) for path in arguments.add_method)
    spec = load_spec(file, overrides, added)
    # A study with more methods is another study: its test classes are opened for it.
    folder = arguments.output or Path("outputs", "_".join([spec.name, *added]))
    console = Console()
    if not console.is_terminal:
        console = Console(width=TABLE_WIDTH)
    if arguments.command == "status":
        print_status(console, folder)
    elif arguments.command == "report":
        spec = _begun(folder)
        print_study(console, folder, spec, write_tables(folder, spec))
    else:
        return _run_study(console, folder, spec, arguments, overrides)
    return 0


def _run_study(
    console: Console, folder: Path, spec: StudySpec, arguments: argparse.Namespace, overrides: dict[str, Any]
) -> int:
    from levelfield.study.runner import run_study  # torch is not needed to say that an option is misspelt

    console.print(
        f"{spec.name}: pretrained baseline and {', '.join(spec.methods)}; {spec.folds} folds, {spec.runs} "
        f"run{'s' * (spec.runs != 1)}, {len(study_jobs(spec))} jobs in {folder}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    try:
        rows = run_study(folder, spec, console, arguments.reopen_test)
    except KeyboardInterrupt:
        done = len(dict(done_jobs(folder, spec)))
        words = ["levelfield", "study", "resume", arguments.file]
        words += ["--output", str(arguments.output)] if arguments.output else []
        words += [word for path in arguments.add_method for word in ("--add-method", path)]
        words += ["--reopen-test", arguments.reopen_test] if arguments.reopen_test else []
        words += [word for key, value in overrides.items() for word in (f"--{key}", _as_word(value))]
        print(
            f"stopped with {done} of {len(study_jobs(spec))} jobs done; go on with: {shlex.join(words)}",
            file=sys.stderr,
        )
        return 130
    print_study(console, folder, spec, rows)
    if not arguments.add_method:
        again = shlex.join(["levelfield", "study", "run", arguments.file, "--add-method", "my_loss.MyLoss"])
        console.print(f"next: your own loss beside these: {again}", highlight=False, markup=False, soft_wrap=True)
    return 0


def _as_word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


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


def find_study(name: str) -> Path:
    """The study file of that path, or of that name in configs/study.

    Raises:
        UserError: there is none, with the nearest name.
    """
    for path in (Path(name), STUDY_FILES / name, STUDY_FILES / f"{name}.yaml"):
        if path.is_file():
            return path
    names = sorted(path.name for path in STUDY_FILES.glob("*.yaml"))
    close = get_close_matches(Path(name).name.removesuffix(".yaml") + ".yaml", names, n=1, cutoff=0.4)
    if close:
        raise UserError(f"no study file {name!r}; did you mean {close[0]!r}?")
    raise UserError(f"no study file {name!r}; " + (f"there are: {', '.join(names)}" if names else "give its path"))


def method_of_loss(path: str) -> tuple[str, Config]:
    """Name and settings of a method that is a loss: `my_loss.MyLoss`, or `ArcFaceLoss` for one of ours.

    A loss with class weights takes `num_classes` first and, as the shipped ones, draws one sample of a class.

    Raises:
        UserError: it cannot be imported.
    """
    module_name, _, class_name = path.rpartition(".")
    module_name = module_name or "levelfield.losses"
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UserError(
            f"--add-method {path}: no module {error.name!r} in the working directory or among the installed packages"
        ) from None
    loss = getattr(module, class_name, None)
    if not inspect.isclass(loss):
        classes = [name for name, value in vars(module).items() if inspect.isclass(value)]
        raise UserError(f"--add-method {path}: {module_name} has no class {class_name!r}{nearest(class_name, classes)}")
    config: Config = {"model": {"loss": {"class_path": f"{module_name}.{class_name}"}}}
    if next(iter(inspect.signature(loss).parameters), None) == "num_classes":
        config["data"] = {"samples_per_class": 1}
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", class_name).lower(), config


def _begun(folder: Path) -> StudySpec:
    path = folder / "study.yaml"
    if not path.exists():
        raise UserError(f"{folder} holds no study; begin it with `levelfield study run`, or name it with --output")
    return spec_from_yaml(path)


def print_status(console: Console, folder: Path) -> None:
    """Jobs done, running and to do, and the time left."""
    spec = _begun(folder)
    jobs = study_jobs(spec)
    done = {job: result["seconds"] for job, result in done_jobs(folder, spec)}
    tested = len(read_tests(folder, spec))
    now = running(folder)
    active = [job for job in jobs if now is not None and str(job) == now["job"]]
    lines = [f"{spec.name} in {folder}", f"done     {len(done)} of {len(jobs)} jobs"]
    if now is None:
        lines.append("running  nothing")
    else:
        lines.append(f"running  {now['job'] or 'starting'} for {duration(time.time() - now['since'])}")
    to_do = [job for job in jobs if job not in done]
    lines.append(f"to do    {len(to_do) - len(active)} jobs")
    lines.append(f"test     {tested} of {len(method_runs(spec))} runs scored")
    left = seconds_left(to_do, done, time.time() - now["since"] if now is not None and active else 0.0)
    if to_do:
        lines.append("left     " + ("not known before a job is done" if left is None else f"about {duration(left)}"))
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


def print_study(console: Console, folder: Path, spec: StudySpec, rows: Sequence[ResultRow]) -> None:
    """The comparison table with what must be said beside it, and where the numbers lie."""
    openings = [entry["reason"] for entry in Ledger(folder / "ledger.jsonl").openings]
    table = comparison_table(spec.name, [BASELINE, *spec.methods], summarise(rows), summarise(rows, stage="run"))
    print_report(console, table, footnotes(spec.runs, spec.folds, openings, differing_conditions(spec)))
    console.print(f"{folder / 'results.csv'}, {folder / 'summary.csv'}", highlight=False, markup=False, soft_wrap=True)
