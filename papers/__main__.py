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
from rich.table import Table
from rich.text import Text

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # `python papers` looks only in this folder

from levelfield.analysis.results import collect_rows, summarise
from levelfield.cli.main import main as levelfield
from levelfield.core.errors import UserError, nearest
from levelfield.report.table import TABLE_WIDTH
from levelfield.study.folder import StudyFolder
from levelfield.study.rows import load_spec
from papers.beside import dataset_name, print_beside
from papers.miniature import begin_miniature, data_and_weights
from papers.published import FOLDER, PAPERS

HELP = """\
Every table and figure of the papers with experiments (The Reality Check, Zhai & Wu, Fehervari et al., Vasilev &
D'yakonov). Call it from the top of the repository.

  python papers list
  python papers run reality_check/table1 --miniature
  python papers run zhai_wu/table3 --data.root DIR --executor.workers 2
  python papers beside outputs/my_study
"""


@dataclass(frozen=True)
class Exhibit:
    """A table or figure of a paper.

    Args:
        paper: The paper's folder.
        number: `table4`.
        what: What it shows.
        published: The paper's numbers, in short.
        studies: The study files in the paper's folder that reproduce it.
        read: The page with its content, for one that needs no training.
    """

    paper: str
    number: str
    what: str
    published: str
    studies: tuple[str, ...] = ()
    read: str = ""

    @property
    def files(self) -> list[Path]:
        return [FOLDER / self.paper / f"{study}.yaml" for study in self.studies]


@cache
def exhibits() -> dict[str, Exhibit]:
    """All exhibits by name, such as `reality_check/table4`, in the papers' order."""
    found = {}
    for paper in PAPERS:
        rows = yaml.safe_load((FOLDER / paper / "published/exhibits.yaml").read_text(encoding="utf-8"))
        for number, row in rows.items():
            studies = tuple(row.pop("studies", ()))
            found[f"{paper}/{number}"] = Exhibit(paper, number, studies=studies, **row)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, or 2 for a mistake in the input."""
    parser = argparse.ArgumentParser(
        prog="python papers",
        description=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("list", help="each table and figure, what the paper has in it, and what it needs")
    run = commands.add_parser(
        "run",
        help="train the studies of one and print the paper's rows next to yours",
        description="All other options go to `levelfield study run`: --data.root DIR, --executor.workers N, --dry-run.",
        allow_abbrev=False,
    )
    run.add_argument("exhibit", metavar="PAPER/EXHIBIT")
    run.add_argument("--miniature", action="store_true", help="the same methods on letters, in minutes")
    run.add_argument("--output", metavar="DIR", type=Path, default=Path("outputs"), help="where results are written")
    beside = commands.add_parser(
        "beside", help="print the papers' rows next to your study's scores", allow_abbrev=False
    )
    beside.add_argument("folder", metavar="DIR", type=Path)
    beside.add_argument("--dataset", metavar="NAME", help="take the rows of another data set")
    arguments, options = parser.parse_known_args(argv)
    if options and arguments.command != "run":
        parser.error(f"{arguments.command} takes no {options[0]}")
    console = Console()
    if not console.is_terminal:
        console = Console(width=TABLE_WIDTH)
    try:
        return _run_command(console, arguments, options)
    except UserError as error:
        print(f"papers: {error}", file=sys.stderr)
        return 2


def _run_command(console: Console, arguments: argparse.Namespace, options: list[str]) -> int:
    if arguments.command == "list":
        console.print(_list())
        return 0
    if arguments.command == "beside":
        _print_beside(console, arguments.folder, arguments.dataset)
        return 0
    if arguments.exhibit not in exhibits():
        raise UserError(f"no table or figure {arguments.exhibit!r}{nearest(arguments.exhibit, exhibits(), '')}")
    exhibit = exhibits()[arguments.exhibit]
    if not exhibit.studies:
        raise UserError(f"{arguments.exhibit} ({exhibit.what}) has nothing to train: see {exhibit.read}")
    return _run_studies(console, exhibit, arguments.output, arguments.miniature, options)


def _list() -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    for heading in ("what", "published, percent", "needs", "studies"):
        table.add_column(heading, overflow="fold")
    for name, exhibit in exhibits().items():
        studies = ", ".join(exhibit.studies) or exhibit.read
        table.add_row(*map(Text, (name, exhibit.what, exhibit.published, _needs(exhibit), studies)))
    return table


def _needs(exhibit: Exhibit) -> str:
    """Data sets, and trunks with pretrained weights, that do not come with levelfield."""
    data: set[str] = set()
    weights: set[str] = set()
    for file in exhibit.files:
        class_paths, pretrained = data_and_weights(load_spec(file))
        data |= {dataset_name(path) or path for path in class_paths}
        weights |= pretrained
    return "; ".join(filter(None, (", ".join(sorted(data)), ", ".join(sorted(weights))))) or "nothing"


def _run_studies(console: Console, exhibit: Exhibit, output: Path, in_miniature: bool, options: list[str]) -> int:
    """Run the studies as `levelfield study run` does, each in its folder, and print the paper's rows next to yours."""
    for file in exhibit.files:
        spec = load_spec(file)
        if in_miniature:
            folder = output / "miniature" / spec.name
            begin_miniature(spec, folder)
            words = ["resume", str(folder), *options]
            published_on = dataset_name(next(iter(data_and_weights(spec)[0])))
        else:
            folder = output / spec.name
            words = ["run", str(file), "--output", str(folder), *options]
            published_on = None
        if code := levelfield(["study", *words]):
            return code
        if "--dry-run" not in options:
            _print_beside(console, folder, published_on, exhibit.paper)
    return 0


def _print_beside(console: Console, folder: Path, dataset: str | None, paper: str = "") -> None:
    study = StudyFolder.begun(folder)
    print_beside(console, study, summarise(collect_rows(study)), dataset, paper)


if __name__ == "__main__":
    sys.exit(main())
