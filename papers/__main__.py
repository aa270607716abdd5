"""`python papers list|run|beside`: commands for every table and figure of the papers."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml
from rich import box
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # `python papers` looks only in this folder

from levelfield.analysis.results import collect_rows, summarise
from levelfield.cli.main import main as levelfield
from levelfield.core.errors import UserError, nearest
from levelfield.report.table import TABLE_WIDTH
from levelfield.study.folder import StudyFolder
from levelfield.study.rows import load_spec
from papers.beside import print_beside
from papers.published import FOLDER, PAPERS

HELP = """\
Every table and figure of the papers with experiments (The Reality Check, Zhai & Wu, Fehervari et al., Vasilev &
D'yakonov). Call it from the top of the repository.

  python papers list
  python papers run zhai_wu/table3 --data.root DIR --executor.workers 2
  python papers beside outputs/my_study
"""


@dataclass(frozen=True)
class Exhibit:
    """A table or figure of a paper.

    Args:
        what: What it shows.
        published: The paper's numbers, in short.
        files: The study files that reproduce it.
        read: The page with its content, for one that needs no training.
    """

    what: str
    published: str
    files: tuple[Path, ...] = ()
    read: str = ""


@cache
def exhibits() -> dict[str, Exhibit]:
    """All exhibits by name, such as `reality_check/table4`, in the papers' order."""
    found = {}
    for paper in PAPERS:
        rows = yaml.safe_load((FOLDER / paper / "published/exhibits.yaml").read_text(encoding="utf-8"))
        for number, row in rows.items():
            files = tuple(FOLDER / paper / f"{study}.yaml" for study in row.pop("studies", ()))
            found[f"{paper}/{number}"] = Exhibit(**row, files=files)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, or 2 for a mistake in the input."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python papers", description=HELP, formatter_class=plain, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("list", help="each table and figure, what the paper has in it, and its studies")
    run = commands.add_parser(
        "run",
        help="train the studies of one and print the paper's rows next to yours",
        description="All other options go to `levelfield study run`: --data.root DIR, --executor.workers N, --dry-run.",
        allow_abbrev=False,
    )
    run.add_argument("exhibit", metavar="PAPER/EXHIBIT")
    run.add_argument("--output", metavar="DIR", type=Path, default=Path("outputs"), help="where results are written")
    beside = commands.add_parser("beside", help="print papers' rows next to your study's scores", allow_abbrev=False)
    beside.add_argument("folder", metavar="DIR", type=Path)
    beside.add_argument("--dataset", metavar="NAME", help="take the rows of another data set")
    given, options = parser.parse_known_args(argv)
    if options and given.command != "run":
        parser.error(f"{given.command} takes no {options[0]}")
    console = Console()
    if not console.is_terminal:
        console = Console(width=TABLE_WIDTH)
    try:
        if given.command == "run":
            return _run(console, given.exhibit, given.output, options)
        if given.command == "list":
            console.print(_list())
        else:
            _print_beside(console, given.folder, given.dataset)
    except UserError as error:
        print(f"papers: {error}", file=sys.stderr)
        return 2
    return 0


def _list() -> Table:
    folded = (Column(heading, overflow="fold") for heading in ("what", "published, percent", "studies"))
    table = Table(Column("", no_wrap=True), *folded, box=box.SIMPLE_HEAD)
    for name, exhibit in exhibits().items():
        studies = ", ".join(file.stem for file in exhibit.files) or exhibit.read
        table.add_row(*map(Text, (name, exhibit.what, exhibit.published, studies)))
    return table


def _run(console: Console, name: str, output: Path, options: list[str]) -> int:
    """Run the studies as `levelfield study run` does, each in its folder, and print the paper's rows next to yours."""
    if name not in exhibits():
        raise UserError(f"no table or figure {name!r}{nearest(name, exhibits(), '')}")
    exhibit = exhibits()[name]
    if not exhibit.files:
        raise UserError(f"{name} ({exhibit.what}) has nothing to train: see {exhibit.read}")
    for file in exhibit.files:
        folder = output / load_spec(file).name
        if code := levelfield(["study", "run", str(file), "--output", str(folder), *options]):
            return code
        if "--dry-run" not in options:
            _print_beside(console, folder, None, name.partition("/")[0])
    return 0


def _print_beside(console: Console, folder: Path, dataset: str | None, paper: str = "") -> None:
    study = StudyFolder.begun(folder)
    print_beside(console, study, summarise(collect_rows(study)), dataset, paper)


if __name__ == "__main__":
    sys.exit(main())
