"""`levelfield data list|verify|prepare`."""

from __future__ import annotations

import argparse
import inspect
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rich.console import Console
from rich.table import Table

from levelfield.errors import UserError

if TYPE_CHECKING:
    from levelfield.data.datasets import MetricDataset

USAGE = "levelfield data list|verify|prepare [NAME ...] [--root DIR]"
DESCRIPTION = """\
The data sets that have a name: what they are, where they lie, whether they are whole.

  list            classes, samples, licence, source, and whether the files are there
  verify          compares the counts with the published ones and opens every sample;
                  lists what is wrong and exits with 2
  prepare         where to get the files, and the folders they are expected in
"""
EPILOG = """\
examples:
  levelfield data list --root DIR
  levelfield data verify omniglot --root DIR
  levelfield fit --config configs/data/omniglot.yaml --data.root DIR --model.loss ArcFaceLoss

Your own images need no name: --config configs/data/image_folder.yaml or configs/data/own_images.yaml (a table).
"""
COMMANDS = ("list", "verify", "prepare")
TABLE_WIDTH = 120


class _Parser(argparse.ArgumentParser):
    """An argument parser whose mistakes are UserErrors of one line."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see levelfield data --help")


def main(argv: Sequence[str]) -> int:
    """Runs `levelfield data` with `argv` (what follows `data`); returns the exit code, 2 where something is missing.

    Raises:
        UserError: a misspelt command, name or option.
    """
    parser = _Parser(
        prog="levelfield data",
        usage=USAGE,
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("command", help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", metavar="NAME", help="data sets; without a name, all of them")
    parser.add_argument(
        "--root", "--data.root", metavar="DIR", help="the folder that named data sets lie in (default: LEVELFIELD_DATA)"
    )
    arguments, unknown = parser.parse_known_intermixed_args(argv or ["--help"])
    if unknown:
        raise UserError(
            f"levelfield data has no option '{unknown[0]}'{_nearest(unknown[0], ['--root', '--data.root'])}"
        )
    if arguments.command not in COMMANDS:
        raise UserError(f"levelfield data has no command '{arguments.command}'{_nearest(arguments.command, COMMANDS)}")
    datasets = [_build(kind, arguments.root) for kind in _chosen(arguments.names)]
    console = Console()
    if not console.is_terminal:
        console = Console(width=TABLE_WIDTH)
    if arguments.command == "list":
        return _list(console, datasets)
    if arguments.command == "prepare":
        return max(_prepare(console, dataset) for dataset in datasets)
    return max(_verify(console, dataset, asked_for=bool(arguments.names)) for dataset in datasets)


def named_datasets() -> dict[str, type[MetricDataset]]:
    """The data sets with published counts, by the names that `levelfield data` calls them."""
    from levelfield.data import datasets

    kinds = (getattr(datasets, name) for name in datasets.__all__)
    return {
        kind.name: kind
        for kind in kinds
        if issubclass(kind, datasets.MetricDataset) and kind.num_classes_published is not None
    }


def _chosen(names: Sequence[str]) -> list[type[MetricDataset]]:
    kinds = named_datasets()
    for name in names:
        if name not in kinds:
            raise UserError(f"no data set '{name}'{_nearest(name, kinds)} (levelfield data list names them)")
    return [kinds[name] for name in names or kinds]


def _build(kind: type[MetricDataset], root: str | None) -> MetricDataset:
    return kind(root=root) if _has_root(kind) else kind()  # type: ignore[call-arg]


def _has_root(kind: type[MetricDataset]) -> bool:
    return "root" in inspect.signature(kind).parameters


def _missing(dataset: MetricDataset) -> str | None:
    """Why the data set cannot be read; None where it can."""
    try:
        dataset.read_index()
    except UserError as error:
        return str(error)
    return None


def _place(dataset: MetricDataset) -> str:
    if not _has_root(type(dataset)):
        return "installed"
    return str(Path(dataset.root or os.environ.get("LEVELFIELD_DATA") or "") / dataset.name)


def _list(console: Console, datasets: Sequence[MetricDataset]) -> int:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("name", no_wrap=True)
    for counted in ("classes", "samples"):
        table.add_column(counted, justify="right", no_wrap=True)
    table.add_column("ready")
    for text in ("where", "licence", "source"):
        table.add_column(text, overflow="fold")
    reasons = []
    for dataset in datasets:
        reason = _missing(dataset)
        table.add_row(
            dataset.name,
            f"{dataset.num_classes_published:,}",
            f"{dataset.num_samples_published:,}",
            "no" if reason else "yes",
            "" if reason else _place(dataset),
            dataset.licence,
            dataset.source,
        )
        reasons += [reason] if reason else []
    console.print(table, highlight=False, markup=False)
    for reason in reasons:
        console.print(reason, highlight=False, markup=False, soft_wrap=True)
    return 0


def _prepare(console: Console, dataset: MetricDataset) -> int:
    reason = _missing(dataset)
    lines = [dataset.name, f"  licence  {dataset.licence}", f"  source   {dataset.source}"]
    if _has_root(type(dataset)):
        lines.append(
            f"  layout   DIR {_layout(type(dataset))}; give it as --root DIR, --data.root DIR or LEVELFIELD_DATA"
        )
    lines.append(f"  missing  {reason}" if reason else f"  ready    {_place(dataset)}; nothing has to be built")
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)
    return 2 if reason else 0


def _layout(kind: type[MetricDataset]) -> str:
    """What the docstring of a data set says about its root."""
    from docstring_parser import parse

    (text,) = (
        argument.description for argument in parse(inspect.getdoc(kind) or "").params if argument.arg_name == "root"
    )
    return " ".join((text or "").partition(";")[0].split()).replace("`", "")


def _verify(console: Console, dataset: MetricDataset, asked_for: bool) -> int:
    reason = _missing(dataset)
    if reason:
        console.print(f"{dataset.name}: not there: {reason}", highlight=False, markup=False, soft_wrap=True)
        return 2 if asked_for else 0
    with console.status(f"{dataset.name}: opening {len(dataset):,} samples"):
        report = dataset.verify()
    found = f"{dataset.name}: {report.num_classes:,} classes, {report.num_samples:,} samples"
    verdict = "as published, every sample opens" if report.ok else f"{len(report.problems)} problems"
    lines = [f"{found}; {verdict}", *(f"  {problem}" for problem in report.problems)]
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)
    return 0 if report.ok else 2


def _nearest(name: str, names: Iterable[str]) -> str:
    from levelfield.parser import nearest  # imports Lightning, which only a mistake needs

    return nearest(name, names)
