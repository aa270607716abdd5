"""`levelfield data list|verify|prepare`."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
from rich.progress import Progress as RichProgress

from levelfield.cli.options import Options
from levelfield.errors import UserError, nearest

if TYPE_CHECKING:
    from levelfield.data.datasets import MetricDataset

HELP = """\
usage: levelfield data list|verify|prepare [NAME or your own FILE or FOLDER ...] [--root DIR] [--archive FILE ...]

The data sets that have a name: what they are, where they lie, whether they are whole. Without a NAME, all of them.

  list            classes, samples, whether it is ready, split, licence, source; with a NAME all of it as a card
  verify          compares the counts with the published ones, opens every sample, test classes too, and reads
                  its bytes again; lists what is wrong and exits with 2, and what is there more than once;
                  your own data as well: a folder of class folders, or a table (.csv, .parquet)
  prepare NAME    fetches the files (a transfer that stopped goes on), checks and unpacks them; what needs your
                  agreement you fetch yourself and give as --archive FILE

  --root DIR      the folder that named data sets lie in (default: LEVELFIELD_DATA); --data.root is the same
  --archive FILE  (prepare) a file that you have fetched yourself; may be given several times

examples:
  levelfield data list --root DIR
  levelfield data prepare cub200 --root DIR
  levelfield data verify omniglot --root DIR
  levelfield data verify my_images.csv
  levelfield fit --config configs/data/omniglot.yaml --data.root DIR --model.loss ArcFaceLoss

Your own images need no name: --config configs/data/image_folder.yaml or configs/data/own_images.yaml (a table).
"""
TABLE_WIDTH = 120


def main(argv: Sequence[str]) -> int:
    """Runs `levelfield data` with `argv` (what follows `data`); returns the exit code, 2 where something is missing.

    Raises:
        UserError: a misspelt command, name or option.
    """
    options = Options(HELP, ("list", "verify", "prepare"))
    options.add_argument("names", nargs="*", default=[])
    options.add_argument("--root", "--data.root")
    options.add_option("--archive", used_by=("prepare",), action="append", default=[])
    arguments = options.read(_names_first(argv) or ["--help"])
    if arguments.archive and len(arguments.names) != 1:
        raise UserError("--archive goes with one NAME: levelfield data prepare NAME --archive FILE")
    if arguments.command != "prepare" and arguments.root and not Path(arguments.root).is_dir():
        raise UserError(f"--root {arguments.root}: no such folder; give the one that the data sets lie in")
    if arguments.command == "prepare" and not arguments.names:
        raise UserError("prepare which data set? give its NAME (levelfield data list names them)")
    datasets = _chosen(arguments.names, arguments.root, own=arguments.command == "verify")
    console = Console()
    if not console.is_terminal:
        console = Console(width=TABLE_WIDTH)
    if arguments.command == "list":
        return _list(console, datasets, arguments.root, asked_for=bool(arguments.names))
    if arguments.command == "prepare":
        given = [Path(file) for file in arguments.archive]
        return max(_prepare(console, dataset, given, arguments.root) for dataset in datasets)
    return max(_verify(console, dataset, arguments.root, asked_for=bool(arguments.names)) for dataset in datasets)


def _names_first(argv: Sequence[str]) -> list[str]:
    """Every option takes a value, and argparse no names behind one."""
    names, options, words = [], [], iter(argv)
    for word in words:
        if word.startswith("-"):
            options += [word, *islice(words, "=" not in word)]
        else:
            names.append(word)
    return [*names, *options]


def named_datasets() -> "dict[str, type[MetricDataset]]":
    """The data sets with published counts, by the names that `levelfield data` calls them."""
    from levelfield.data import datasets

    kinds = (getattr(datasets, name) for name in datasets.__all__)
    named = [
        kind for kind in kinds if issubclass(kind, datasets.MetricDataset) and kind.num_classes_published is not None
    ]
    return {kind.name: kind for kind in sorted(named, key=lambda kind: kind.name)}


def _chosen(names: Sequence[str], root: str | None, own: bool) -> "list[MetricDataset]":
    """The named data sets, all of them without a name; with `own` a name may be the path of one's own data."""
    return [dataset_named(name, root, own) for name in names or named_datasets()]


def dataset_named(name: str, root: str | None = None, own: bool = True) -> "MetricDataset":
    """The data set of that name; with `own` it may be the path of one's own data.

    Raises:
        UserError: there is none.
    """
    from levelfield.data.own import own_dataset

    kinds = named_datasets()
    dataset = _build(kinds[name], root) if name in kinds else own_dataset(name, root) if own else None
    if dataset is None:
        also = ", and it is no folder, no .csv and no .parquet table" if own else ""
        raise UserError(f"no data set '{name}'{nearest(name, kinds, '')} (levelfield data list names them){also}")
    return dataset


def _build(kind: "type[MetricDataset]", root: str | None) -> "MetricDataset":
    from levelfield.data.datasets.base import has_root

    return kind(root=root) if has_root(kind) else kind()  # type: ignore[call-arg]


def _list(console: Console, datasets: "Sequence[MetricDataset]", root: str | None, asked_for: bool) -> int:
    from levelfield.cli.data_cards import card_of, table_of
    from levelfield.data.places import root_in_vain

    if asked_for:
        _print(console, "\n\n".join("\n".join([card_of(one), *root_in_vain(one, root)]) for one in datasets))
        return 0
    table, broken = table_of(datasets)
    console.print(table, highlight=False, markup=False)
    hint = (
        "levelfield data list NAME shows a card with the layout; levelfield data prepare NAME fetches what is missing"
    )
    _print(console, "\n".join([*broken, hint]))
    return 0


def _prepare(console: Console, dataset: "MetricDataset", given: Sequence[Path], root: str | None) -> int:
    from levelfield.cli.data_cards import folder_of, why_not_ready
    from levelfield.data.datasets.base import has_root
    from levelfield.data.places import root_in_vain
    from levelfield.data.prepare import prepare

    reason = why_not_ready(dataset)
    if given and (reason is None or not has_root(type(dataset))):
        _print(console, f"note: --archive {given[0]} is passed over: nothing of {dataset.name} has to be fetched")
    if not has_root(type(dataset)):
        lines = [f"{dataset.name}: {reason or 'ready, nothing has to be fetched'}", *root_in_vain(dataset, root)]
        _print(console, "\n".join(lines))
        return 2 if reason else 0
    folder = folder_of(dataset)
    if folder is None:
        raise UserError(f"{dataset.name} needs a folder to go to: give --root DIR or set LEVELFIELD_DATA")
    if reason is not None:
        _print(console, f"{dataset.name}: to {folder}; licence: {dataset.licence}")
        try:
            prepare(dataset, folder.parent, given, lambda line: _print(console, line), partial(_bar, console))
        except KeyboardInterrupt:
            raise KeyboardInterrupt("what has arrived is kept, and the same command goes on there") from None
        except OSError as error:
            place = error.filename or folder
            raise UserError(
                f"cannot write {place} ({error.strerror}): make that possible or give another --root"
            ) from None
    index = dataset.read_index()
    found = (len(index.class_names), len(index.keys))
    counts = f"{dataset.name}: {found[0]:,} classes, {found[1]:,} samples in {folder}"
    if found != dataset.expected_counts():
        _print(console, f"{counts}; levelfield data verify {dataset.name} says what is wrong")
        return 2
    _print(console, f"{counts}, as published; levelfield data verify {dataset.name} opens each")
    return 0


@contextmanager
def _bar(console: Console, caption: str) -> Iterator[Callable[[int, int | None], None]]:
    columns = (TextColumn("  {task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with RichProgress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(caption, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _print(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _verify(console: Console, dataset: "MetricDataset", root: str | None, asked_for: bool) -> int:
    from levelfield.data.duplicates import describe_duplicates
    from levelfield.data.places import root_in_vain

    try:
        with console.status(f"{dataset.name}: opening every sample"):
            report = dataset.verify()
    except UserError as error:
        reason = f"not there: {error}" if dataset.num_classes_published is not None else error
        _print(console, f"{dataset.name}: {reason}")
        return 2 if asked_for else 0
    published = "as published, " if dataset.num_classes_published is not None else ""
    count = len(report.problems)
    verdict = f"{published}every sample opens" if report.ok else f"{count} problem{'s' * (count > 1)}"
    duplicates = describe_duplicates(report.duplicates)
    found, *left_out = report.overview
    left_out += root_in_vain(dataset, root)
    lines = [f"{found}; {verdict}", *(f"  {line}" for line in (*left_out, *report.problems, *duplicates))]
    _print(console, "\n".join(lines))
    return 0 if report.ok else 2
