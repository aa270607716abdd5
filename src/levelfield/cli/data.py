"""`levelfield data list|verify|prepare`."""

from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from levelfield.core.errors import UserError, nearest
from levelfield.core.terminal import say

if TYPE_CHECKING:
    from levelfield.data.datasets import MetricDataset

TABLE_WIDTH = 120


def main(arguments: Namespace) -> int:
    """Run `levelfield data`; return the exit code, 2 if something is wrong.

    Raises:
        UserError: a misspelt name, or a folder that is missing.
    """
    if arguments.command == "prepare" and arguments.archive and len(arguments.names) != 1:
        raise UserError("--archive needs exactly one NAME: levelfield data prepare NAME --archive FILE")
    if arguments.command != "prepare" and arguments.root and not Path(arguments.root).is_dir():
        raise UserError(f"--root {arguments.root}: no such folder; give the folder with the data sets")
    datasets = _chosen(arguments.names, arguments.root, own=arguments.command == "verify")
    console = Console()
    if not console.is_terminal:
        console = Console(width=TABLE_WIDTH)
    if arguments.command == "list":
        return _list(console, datasets, asked_for=bool(arguments.names))
    if arguments.command == "prepare":
        given = [Path(file) for file in arguments.archive]
        return max(_prepare(console, dataset, given) for dataset in datasets)
    return max(_verify(console, dataset, asked_for=bool(arguments.names)) for dataset in datasets)


def named_datasets() -> "dict[str, type[MetricDataset]]":
    """Name to class of the data sets with published counts."""
    from levelfield.data import datasets

    kinds = (getattr(datasets, name) for name in datasets.__all__)
    named = [
        kind for kind in kinds if issubclass(kind, datasets.MetricDataset) and kind.num_classes_published is not None
    ]
    return {kind.name: kind for kind in sorted(named, key=lambda kind: kind.name)}


def _chosen(names: Sequence[str], root: str | None, own: bool) -> "list[MetricDataset]":
    """The named data sets, or all without a name; with `own` a name may be the path of your own data."""
    return [dataset_named(name, root, own) for name in names or named_datasets()]


def dataset_named(name: str, root: str | None = None, own: bool = True) -> "MetricDataset":
    """The data set with that name; with `own` the name may be the path of your own data.

    Raises:
        UserError: no such data set.
    """
    from levelfield.data.own import dataset_from_path

    kinds = named_datasets()
    dataset = _build(kinds[name], root) if name in kinds else dataset_from_path(name, root) if own else None
    if dataset is None:
        also = ", nor a folder or a .csv or .parquet table of that path" if own else ""
        raise UserError(f"no data set '{name}'{also}{nearest(name, kinds, '')} (levelfield data list shows them)")
    return dataset


def _build(kind: "type[MetricDataset]", root: str | None) -> "MetricDataset":
    from levelfield.data.dataset import has_root

    return kind(root=root) if has_root(kind) else kind()  # type: ignore[call-arg]


def _list(console: Console, datasets: "Sequence[MetricDataset]", asked_for: bool) -> int:
    from levelfield.cli.data_cards import card_of, table_of

    if asked_for:
        say("\n\n".join(map(card_of, datasets)), console=console)
        return 0
    table, broken = table_of(datasets)
    console.print(table, highlight=False, markup=False)
    hint = "levelfield data list NAME shows the folder layout; levelfield data prepare NAME downloads missing files"
    say("\n".join([*broken, hint]), console=console)
    return 0


def _prepare(console: Console, dataset: "MetricDataset", given: Sequence[Path]) -> int:
    from levelfield.cli.data_cards import folder_of, why_not_ready
    from levelfield.data.dataset import has_root
    from levelfield.data.prepare import prepare

    reason = why_not_ready(dataset)
    if given and (reason is None or not has_root(type(dataset))):
        say(f"note: --archive {given[0]} has no effect: {dataset.name} needs no download", console=console)
    if not has_root(type(dataset)):
        say(f"{dataset.name}: {reason or 'ready, no download needed'}", console=console)
        return 2 if reason else 0
    folder = folder_of(dataset)
    if folder is None:
        raise UserError(f"{dataset.name} needs a folder: give --root DIR, or set LEVELFIELD_DATA")
    if reason is not None:
        say(f"{dataset.name}: to {folder}; licence: {dataset.licence}", console=console)
        try:
            prepare(dataset, folder.parent, given, partial(say, console=console))
        except KeyboardInterrupt:
            raise KeyboardInterrupt("the same command starts the download again") from None
        except OSError as error:
            place = error.filename or folder
            raise UserError(f"cannot write {place} ({error.strerror}): change that, or give another --root") from None
    index = dataset.read_index()
    found = (len(index.class_names), len(index.keys))
    counts = f"{dataset.name}: {found[0]:,} classes, {found[1]:,} samples in {folder}"
    if found != (dataset.num_classes_published, dataset.num_samples_published):
        say(f"{counts}; levelfield data verify {dataset.name} shows what is wrong", console=console)
        return 2
    say(f"{counts}, as published; levelfield data verify {dataset.name} opens each", console=console)
    return 0


def _verify(console: Console, dataset: "MetricDataset", asked_for: bool) -> int:
    from levelfield.data.verify import verify

    try:
        with console.status(f"{dataset.name}: opening every sample"):
            report = verify(dataset)
    except UserError as error:
        reason = f"missing: {error}" if dataset.num_classes_published is not None else error
        say(f"{dataset.name}: {reason}", console=console)
        return 2 if asked_for else 0
    published = "as published, " if dataset.num_classes_published is not None else ""
    count = len(report.problems)
    verdict = f"{published}every sample opens" if report.ok else f"{count} problem{'s' * (count > 1)}"
    found, *left_out = report.overview
    lines = [f"{found}; {verdict}", *(f"  {line}" for line in (*left_out, *report.problems, *report.duplicates))]
    say("\n".join(lines), console=console)
    return 0 if report.ok else 2
