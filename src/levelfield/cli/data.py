"""`levelfield data list|verify|prepare`."""

import inspect
import os
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import indent
from urllib.parse import urlsplit

from rich.console import Console
from rich.filesize import decimal

from levelfield.core.errors import UserError, nearest
from levelfield.core.terminal import say
from levelfield.data import datasets
from levelfield.data.dataset import MetricDataset, has_root
from levelfield.data.own import dataset_from_path
from levelfield.data.verify import verify


def main(given: Namespace) -> int:
    """Run `levelfield data`; return the exit code, 2 if something is wrong."""
    if given.command == "prepare" and given.archive and len(given.name) != 1:
        raise UserError("--archive needs exactly one NAME: levelfield data prepare NAME --archive FILE")
    if given.command != "prepare" and given.root and not Path(given.root).is_dir():
        raise UserError(f"--root {given.root}: no such folder; give the folder with the data sets")
    found = [dataset_named(name, given.root, given.command == "verify") for name in given.name or named_datasets()]
    if given.command == "prepare":
        return max(_prepare(dataset, [*map(Path, given.archive)]) for dataset in found)
    if given.command == "verify":
        return max(_verify(dataset, asked_for=bool(given.name)) for dataset in found)
    say(*([_card_of(dataset) for dataset in found] if given.name else _table_of(found)))
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


def _table_of(datasets: Sequence[MetricDataset]) -> Iterator[str]:
    """A line for each data set, then for each whose folder exists but cannot be read, then what to do next."""
    yield f"{'name':<14}{'classes':>8}{'samples':>9}  ready  {'split':<34}source"
    broken = []
    for dataset in datasets:
        reason, folder = _why_not_ready(dataset), _folder_of(dataset)
        if reason is not None and folder is not None and folder.exists():
            broken.append(f"{dataset.name}: {reason}")
        counts = f"{dataset.num_classes_published:>8,}{dataset.num_samples_published:>9,}"
        source = urlsplit(dataset.source).netloc.removeprefix("www.") or dataset.source
        yield f"{dataset.name:<14}{counts}  {'no' if reason else 'yes':<7}{dataset.splits:<34}{source}"
    yield from broken
    yield "levelfield data list NAME shows the folder layout; levelfield data prepare NAME downloads missing files"


def _card_of(dataset: MetricDataset) -> str:
    """The docstring of a data set, with its facts and files."""
    found = f"{dataset.num_classes_published:,} classes, {dataset.num_samples_published:,} samples ({dataset.modality})"
    facts = {"counts": found, "split": dataset.splits, "licence": dataset.licence, "source": dataset.source}
    for each in dataset.archives:
        size, checksum = decimal(each.size) if each.size else "size unknown", each.sha256 or "not published"
        facts[each.file] = f"{size}, SHA-256 {checksum}, {each.url or 'download it yourself'}"
    facts |= {"folder": f"{_folder_of(dataset) or 'none'}", "ready": _why_not_ready(dataset) or "yes"}
    lines = [inspect.getdoc(type(dataset)) or "", *(f"{name}: {fact}" for name, fact in facts.items())]
    return "\n".join([dataset.name, indent("\n".join(lines), "  ")])


def _prepare(dataset: MetricDataset, given: Sequence[Path]) -> int:
    from levelfield.data.prepare import prepare  # imports torch, which the other commands do not need

    folder = _folder_of(dataset)
    if folder is None and has_root(type(dataset)):
        raise UserError(f"{dataset.name} needs a folder: give --root DIR, or set LEVELFIELD_DATA")
    if folder is not None and _why_not_ready(dataset) is not None:
        say(f"{dataset.name}: to {folder}; licence: {dataset.licence}")
        try:
            prepare(dataset, folder.parent, given, say)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("the same command starts the download again") from None
        except OSError as error:
            place = error.filename or folder
            raise UserError(f"cannot write {place} ({error.strerror}): change that, or give another --root") from None
    elif given:
        say(f"note: --archive {given[0]} has no effect: {dataset.name} needs no download")
    index = dataset.read_index()
    found = (len(index.class_names), len(index.keys))
    counts = f"{dataset.name}: {found[0]:,} classes, {found[1]:,} samples{f' in {folder}' if folder else ''}"
    if found != (dataset.num_classes_published, dataset.num_samples_published):
        say(f"{counts}; levelfield data verify {dataset.name} shows what is wrong")
        return 2
    say(f"{counts}, as published; levelfield data verify {dataset.name} opens each")
    return 0


def _verify(dataset: MetricDataset, asked_for: bool) -> int:
    try:
        with Console(stderr=True).status(f"{dataset.name}: opening every sample"):
            report = verify(dataset)
    except UserError as error:
        reason = f"missing: {error}" if dataset.num_classes_published is not None else error
        say(f"{dataset.name}: {reason}")
        return 2 if asked_for else 0
    published = "as published, " if dataset.num_classes_published is not None else ""
    count = len(report.problems)
    verdict = f"{published}every sample opens" if not count else f"{count} problem{'s' * (count > 1)}"
    found, *left_out = report.overview
    lines = [f"{found}; {verdict}", *(f"  {line}" for line in (*left_out, *report.problems, *report.duplicates))]
    say("\n".join(lines))
    return 2 if count else 0
