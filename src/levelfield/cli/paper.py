"""`levelfield paper list|run`."""

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from levelfield.analysis.exhibits import Exhibit, exhibit, exhibits
from levelfield.analysis.papers import dataset_name
from levelfield.analysis.results import collect_rows, summarise, write_tables
from levelfield.cli import study
from levelfield.cli.command_parser import CommandParser, options_of
from levelfield.errors import UserError
from levelfield.experiment import Study
from levelfield.report.paper_figures import paper_figures, write_paper_figure
from levelfield.report.papers_table import print_papers
from levelfield.report.table import TABLE_WIDTH
from levelfield.study.definition.miniature import data_and_weights, miniature
from levelfield.study.definition.spec import STUDY
from levelfield.study.definition.study_file import find_study, load_spec
from levelfield.study.record import StudyRecord

HELP = """\
usage: levelfield paper COMMAND [PAPER/EXHIBIT] [--KEY VALUE ...]

Every table and figure of the papers with experiments (The Reality Check, Zhai & Wu, Fehervari et al., Vasilev &
D'yakonov), here.

  list                every one, what the paper has in it, and what is needed
  run NAME            its studies at full size, by the paper's protocol, then the paper's rows beside ours; what follows
                      from published numbers alone is computed and drawn

  --miniature         (run) the same methods on letters or made-up texts, with a tiny trunk, in minutes: does all run?
  --output DIR        (run) where the studies' folders, or the drawings, are written (default: outputs)
  --study DIR         (run) a study of yours whose scores join what is computed from published numbers; repeatable

run takes the options of `levelfield study run` too: --data.root DIR, --executor.workers N, --dry-run, --runs N.

  levelfield paper run reality_check/table1 --miniature
  levelfield paper run zhai_wu/table3 --data.root DIR --executor.workers 2
"""
OUTPUTS = Path("outputs")


def main(argv: Sequence[str]) -> int:
    """Run `levelfield paper` with `argv` (what follows `paper`) and return the exit code.

    Raises:
        UserError: a mistake; the command line prints it and exits with 2.
    """
    console = Console()
    if not console.is_terminal:
        console = Console(width=TABLE_WIDTH)
    if argv[:1] == ["run"] and not {"-h", "--help"} & set(argv):
        if len(argv) < 2 or argv[1].startswith("--"):
            raise UserError(
                "levelfield paper run: name a table or figure first, such as reality_check/table1 (paper list)"
            )
        wanted = exhibit(argv[1])
        if wanted.studies and "--miniature" not in argv:
            return _run_studies(console, wanted, argv[2:])
    parser = CommandParser(HELP, ("list", "run"))
    parser.add_argument("name", nargs="?")
    parser.add_option("--miniature", used_by=("run",), action="store_true")
    parser.add_option("--output", used_by=("run",), type=Path, default=OUTPUTS)
    parser.add_option("--study", used_by=("run",), action="append", default=[])
    arguments = parser.parse_args(argv or ["--help"])
    if arguments.command == "list":
        if arguments.name is not None:
            raise UserError(f"levelfield paper list shows all: leave {arguments.name!r} out")
        console.print(_listed())
        return 0
    _refuse_unused(wanted, argv)
    for study_name in wanted.studies:
        _run_small(console, wanted, study_name, arguments.output / "miniature")
    if wanted.drawn:
        figure, records = paper_figures()[wanted.name], [_finished(Path(folder)) for folder in arguments.study]
        _say(console, "\n".join([figure.title, "", *figure.lines(records)]))
        _say(console, "\n".join(map(str, write_paper_figure(figure, arguments.output / "papers", records))))
    if wanted.read:
        _say(console, f"{wanted.name}: {wanted.what}; nothing to measure, see {wanted.read}")
    return 0


def _refuse_unused(wanted: Exhibit, words: Sequence[str]) -> None:
    used, why = {
        wanted.drawn: (("--output", "--study"), "is computed from published numbers"),
        bool(wanted.read): ((), "has nothing to measure"),
        bool(wanted.studies): (("--miniature", "--output"), "is not computed from published numbers"),
    }[True]
    for option in options_of(words):
        if option not in used:
            raise UserError(f"{option}: {wanted.name} {why}; leave the option out")


def _finished(folder: Path) -> StudyRecord:
    if not (folder / STUDY).exists():
        raise UserError(f"--study {folder} holds no study; give the output folder of a finished one")
    return StudyRecord.begun(folder)


def _listed() -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("", "what", "published, percent", "needs", "studies"):
        table.add_column(heading, overflow="fold")
    for each in exhibits().values():
        here = "computed" if each.drawn else f"no measurement: {each.read}" if each.read else _studies(each)
        table.add_row(*map(Text, (each.name, each.what, each.published, each.needs, here)))
    return table


def _studies(each: Exhibit) -> str:
    return ", ".join(study.rpartition("/")[2] for study in each.studies)


def _run_studies(console: Console, wanted: Exhibit, options: Sequence[str]) -> int:
    """Run the studies as `levelfield study run` does, each in its folder, and print the paper's rows beside ours."""
    for name in wanted.studies:
        output = study.parse(["run", name, *options]).output or OUTPUTS
        folder = output / load_spec(find_study(name)).name
        code = study.main(["run", name, *options, "--output", str(folder)])
        if code != 0:
            return code
        if "--dry-run" not in options:
            record = StudyRecord.begun(folder)
            print_papers(console, record, summarise(collect_rows(record)), paper_key=wanted.paper)
    return 0


def _run_small(console: Console, wanted: Exhibit, name: str, folder: Path) -> None:
    from levelfield.study.run import run_study  # with torch, which the list does not need

    full = load_spec(find_study(name))
    published_on = next(iter(data_and_weights(full)[0]))
    texts = folder / f"{full.name}_texts.csv"
    folder.mkdir(parents=True, exist_ok=True)
    record = run_study(StudyRecord(folder / full.name, miniature(full, texts)), console)
    write_tables(record)
    console.print(Study(record.folder).table())
    print_papers(console, record, summarise(collect_rows(record)), dataset_name(published_on), wanted.paper)
    _say(console, str(Study(record.folder).report()))


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
