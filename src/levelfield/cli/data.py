"""`levelfield data list|verify|prepare`."""

import inspect
import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from docstring_parser import parse
from rich.console import Console
from rich.filesize import decimal
from rich.table import Column, Table
from rich.text import Text

from levelfield.core.errors import UserError, nearest
from levelfield.core.terminal import say
from levelfield.data import datasets
from levelfield.data.dataset import MetricDataset, has_root
from levelfield.data.own import dataset_from_path
from levelfield.data.verify import verify

TABLE_WIDTH = 120


def main(given: Namespace) -> int:
    """Run `levelfield data`; return the exit code, 2 if something is wrong.

    Raises:
        UserError: a misspelt name, or a folder that is missing.
    """
    if given.command == "prepare" and given.archive and len(given.name) != 1:
        raise UserError("--archive needs exactly one NAME: levelfield data prepare NAME --archive FILE")
    if given.command != "prepare" and given.root and not Path(given.root).is_dir():
        raise UserError(f"--root {given.root}: no such folder; give the folder with the data sets")
    found = [dataset_named(name, given.root, given.command == "verify") for name in given.name or named_datasets()]
    console = Console(width=None if sys.stdout.isatty() else TABLE_WIDTH)
    if given.command == "prepare":
        return max(_prepare(console, dataset, [*map(Path, given.archive)]) for dataset in found)
    if given.command == "verify":
        return max(_verify(console, dataset, asked_for=bool(given.name)) for dataset in found)
    if given.name:
        say("\n\n".join(map(_card_of, found)), console=console)
    else:
        _print_table(console, found)
    return 0


def named_datasets() -> dict[str, type[MetricDataset]]:
    """Name to class of the data sets with published counts."""
    kinds = (getattr(datasets, name) for name in datasets.__all__)
    named = [kind for kind in kinds if issubclass(kind, MetricDataset) and kind.num_classes_published is not None]
    return {kind.name: kind for kind in sorted(named, key=lambda kind: kind.name)}


def dataset_named(name: str, root: str | None = None, own: bool = True) -> MetricDataset:
    """The data set with that name; with `own` the name may be the path of your own data.

    Raises:
        UserError: no such data set.
    """
    kinds = named_datasets()
    if kind := kinds.get(name):
        return kind(root=root) if has_root(kind) else kind()  # type: ignore[call-arg]
    if own and (dataset := dataset_from_path(name, root)) is not None:
        return dataset
    also = ", nor a folder or a .csv or .parquet table of that path" if own else ""
    raise UserError(f"no data set '{name}'{also}{nearest(name, kinds, '')} (levelfield data list shows them)")


def _why_not_ready(dataset: MetricDataset) -> str | None:
    """Why the data set cannot be read; None if it can."""
    try:
        dataset.read_index()
    except UserError as error:
        return str(error)
    return None


def _folder_of(dataset: MetricDataset) -> Path | None:
    """The folder of the data set, whether it exists or not; None if it has none, or no root is given."""
    given = getattr(dataset, "root", None) or os.environ.get("LEVELFIELD_DATA")
    return Path(given) / (dataset.folder_name or dataset.name) if given and has_root(type(dataset)) else None


def _print_table(console: Console, datasets: Sequence[MetricDataset]) -> None:
    """The table, a line for each data set whose folder exists but cannot be read, and what to do next."""
    counts = (Column(name, justify="right", no_wrap=True) for name in ("classes", "samples"))
    texts = (Column(name, overflow="fold") for name in ("split", "licence", "source"))
    columns = (Column("name", no_wrap=True), *counts, Column("ready", no_wrap=True), *texts)
    table, broken = Table(*columns, box=None, pad_edge=False, padding=(0, 2, 0, 0)), []
    for dataset in datasets:
        reason, folder = _why_not_ready(dataset), _folder_of(dataset)
        if reason is not None and folder is not None and folder.exists():
            broken.append(f"{dataset.name}: {reason}")
        numbers = (f"{dataset.num_classes_published:,}", f"{dataset.num_samples_published:,}")
        source = urlsplit(dataset.source).netloc.removeprefix("www.") or dataset.source
        row = (dataset.name, *numbers, "no" if reason else "yes", dataset.splits, dataset.licence, source)
        table.add_row(*map(Text, row))
    console.print(table, highlight=False, markup=False)
    hint = "levelfield data list NAME shows the folder layout; levelfield data prepare NAME downloads missing files"
    say(*broken, hint, console=console)


def _card_of(dataset: MetricDataset) -> str:
    """All facts about a data set, one per line; the folder's layout is from its docstring."""
    text = inspect.getdoc(type(dataset)) or ""
    reason, layout = _why_not_ready(dataset), {part.arg_name: part.description or "" for part in parse(text).params}
    each = "an image" if dataset.modality == "image" else "a text"
    facts = [
        ("what", (inspect.getdoc(inspect.getmodule(type(dataset))) or "").partition("\n")[0]),
        ("paper", text.partition("\n")[0]),
        ("classes", f"{dataset.num_classes_published:,}"),
        ("samples", f"{dataset.num_samples_published:,}, each {each}"),
        *(("split", dataset.splits), ("licence", dataset.licence), ("source", dataset.source)),
    ]
    for archive in dataset.archives:
        size = f", {decimal(archive.size)}" if archive.size else ""
        checksum = f"SHA-256 {archive.sha256}" if archive.sha256 else "no published checksum"
        facts.append(("file", f"{archive.file}{size}, {checksum}{'' if archive.url else '; download it yourself'}"))
    if "root" in layout:
        holds = " ".join(layout["root"].partition(";")[0].split()).replace("`", "")
        facts.append(("layout", f"DIR {holds}; DIR is --root, --data.root or LEVELFIELD_DATA"))
        facts.append(("where", str(_folder_of(dataset) or "no DIR given")))
    facts.append(("ready", f"no: {reason}" if reason else "yes"))
    return "\n".join([dataset.name, *(f"  {name:<8} {fact}" for name, fact in facts)])


def _prepare(console: Console, dataset: MetricDataset, given: Sequence[Path]) -> int:
    from levelfield.data.prepare import prepare  # imports torch, which the other commands do not need

    reason = _why_not_ready(dataset)
    if given and (reason is None or not has_root(type(dataset))):
        say(f"note: --archive {given[0]} has no effect: {dataset.name} needs no download", console=console)
    if not has_root(type(dataset)):
        say(f"{dataset.name}: {reason or 'ready, no download needed'}", console=console)
        return 2 if reason else 0
    folder = _folder_of(dataset)
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


def _verify(console: Console, dataset: MetricDataset, asked_for: bool) -> int:
    try:
        with console.status(f"{dataset.name}: opening every sample"):
            report = verify(dataset)
    except UserError as error:
        reason = f"missing: {error}" if dataset.num_classes_published is not None else error
        say(f"{dataset.name}: {reason}", console=console)
        return 2 if asked_for else 0
    published = "as published, " if dataset.num_classes_published is not None else ""
    count = len(report.problems)
    verdict = f"{published}every sample opens" if not count else f"{count} problem{'s' * (count > 1)}"
    found, *left_out = report.overview
    lines = [f"{found}; {verdict}", *(f"  {line}" for line in (*left_out, *report.problems, *report.duplicates))]
    say("\n".join(lines), console=console)
    return 2 if count else 0
