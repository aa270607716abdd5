"""A named data set in `levelfield data list`: a row of the table, or a card."""

import inspect
import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from levelfield.core.errors import UserError
from levelfield.data.dataset import Archive, MetricDataset, has_root


def why_not_ready(dataset: MetricDataset) -> str | None:
    """Why the data set cannot be read; None if it can."""
    try:
        dataset.read_index()
    except UserError as error:
        return str(error)
    return None


def folder_of(dataset: MetricDataset) -> Path | None:
    """The folder of the data set, whether it exists or not; None if no root is given."""
    given = getattr(dataset, "root", None) or os.environ.get("LEVELFIELD_DATA")
    return Path(given) / (dataset.folder_name or dataset.name) if given and has_root(type(dataset)) else None


def table_of(datasets: Sequence[MetricDataset]) -> tuple[Table, list[str]]:
    """The table, and a line for each data set whose folder exists but cannot be read."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("name", no_wrap=True)
    for counted in ("classes", "samples"):
        table.add_column(counted, justify="right", no_wrap=True)
    table.add_column("ready", no_wrap=True)
    for text in ("split", "licence", "source"):
        table.add_column(text, overflow="fold")
    broken = []
    for dataset in datasets:
        reason = why_not_ready(dataset)
        folder = folder_of(dataset)
        if reason is not None and folder is not None and folder.exists():
            broken.append(f"{dataset.name}: {reason}")
        table.add_row(
            Text(dataset.name),
            f"{dataset.num_classes_published:,}",
            f"{dataset.num_samples_published:,}",
            "no" if reason else "yes",
            Text(dataset.splits),
            Text(dataset.licence),
            Text(urlsplit(dataset.source).netloc.removeprefix("www.") or dataset.source),
        )
    return table, broken


def card_of(dataset: MetricDataset) -> str:
    """All facts about a data set, one per line."""
    kind = type(dataset)
    reason = why_not_ready(dataset)
    folder = folder_of(dataset)
    facts = [
        ("what", _first_line(inspect.getdoc(inspect.getmodule(kind)))),
        ("paper", _first_line(inspect.getdoc(kind))),
        ("classes", f"{dataset.num_classes_published:,}"),
        ("samples", f"{dataset.num_samples_published:,}, each {'an image' if kind.modality == 'image' else 'a text'}"),
        ("split", dataset.splits),
        ("licence", dataset.licence),
        ("source", dataset.source),
        *(("file", _describe(archive)) for archive in dataset.archives),
    ]
    if has_root(kind):
        facts.append(("layout", f"DIR {layout_of(kind)}; DIR is --root, --data.root or LEVELFIELD_DATA"))
    facts.append(("where", str(folder) if folder else "installed" if not has_root(kind) else "no DIR given"))
    facts.append(("ready", f"no: {reason}" if reason else "yes"))
    if reason and dataset.archives:
        facts.append(("to do", f"levelfield data prepare {dataset.name} --root DIR"))
    return "\n".join([dataset.name, *(f"  {name:<8} {fact}" for name, fact in facts)])


def layout_of(kind: type[MetricDataset]) -> str:
    """The folder layout, from the docstring of a data set."""
    from docstring_parser import parse

    (text,) = (
        argument.description for argument in parse(inspect.getdoc(kind) or "").params if argument.arg_name == "root"
    )
    return " ".join((text or "").partition(";")[0].split()).replace("`", "")


def _first_line(docstring: str | None) -> str:
    return (docstring or "").partition("\n")[0]


def _describe(archive: Archive) -> str:
    size = f", {decimal(archive.size)}" if archive.size else ""
    checksum = f"SHA-256 {archive.sha256}" if archive.sha256 else "no published checksum"
    return f"{archive.file}{size}, {checksum}{'' if archive.url else '; download it yourself'}"
