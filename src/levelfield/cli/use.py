"""`levelfield predict --data`, `score`, `search` and `export`: uses of a checkpoint, or of a pretrained trunk."""

import shlex
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from levelfield.cli.data import dataset_named
from levelfield.core.errors import UserError
from levelfield.core.terminal import say
from levelfield.data.verify import counts_of
from levelfield.metrics.definitions import title_of
from levelfield.use import answers, output
from levelfield.use.encoder import Encoder, trunk_for
from levelfield.use.gallery import SHOWN, Gallery, query_of
from levelfield.use.transfer import transfer

MOST_NAMED = 20


def main(given: Namespace) -> int:
    """Run the command; return the exit code."""
    {"predict": _predict, "score": _score, "search": _search, "export": _export}[given.command](given)
    return 0


def _predict(given: Any) -> None:
    stem = Path(given.data).resolve().stem
    folder = Path() if given.ckpt_path is None else _folder(given.ckpt_path)
    path = Path(given.output or folder / f"embeddings_{stem}.parquet")
    output.check_output(path)
    trunk = trunk_for(given.data, given.ckpt_path, given.trunk)
    encoder = Encoder(given.ckpt_path, given.device, given.trust, trunk=trunk)
    samples = encoder.samples(given.data)
    _say(samples.notes)
    with _progress(f"embedding {len(samples.keys):,} {samples.modality}s") as progress:
        # Its file has the labels, so the ledger gets a line.
        embedded = encoder.embed(samples, skip_broken=given.skip_broken, progress=progress, by="levelfield predict")
    _say_broken(embedded.left_out, len(samples.keys))
    output.write_embeddings(embedded, path, {"checkpoint": " ".join(encoder.hash), "distance": encoder.distance})
    count, size = embedded.embeddings.shape
    labelled = "" if embedded.labels is None else f", {len(set(embedded.labels)):,} labels"
    say(f"{count:,} embeddings of {size} numbers{labelled}: {path}")


def _score(given: Any) -> None:
    dataset = dataset_named(given.data)
    encoder = Encoder(given.ckpt_path, given.device, given.trust)
    encoder.learners[0].trunk.check_takes(dataset)
    with _progress(f"embedding {given.data}") as progress:
        found = transfer(encoder, dataset, _folder(given.ckpt_path), given.skip_broken, progress)
    _say_broken(found.left_out, len(dataset.read_index().keys))
    say(counts_of(dataset.name, dataset.read_index()))
    say(_met_before(found.seen, found.num_classes))
    for metric, score in found.scores.items():
        interval = "" if score.ci95 is None else f" ± {100 * score.ci95:.1f}"
        say(f"  {title_of(metric):<12}{100 * score.value:5.1f}{interval}")
    say(f"Percent; ± is half a 95% interval over the {found.num_classes:,} classes.")
    if found.num_skipped:
        say(f"{found.num_skipped:,} samples are the only one of their class and are not used as queries.")
    say(f"evaluation {found.evaluations} on this set, recorded in {found.ledger}")


def _search(given: Any) -> None:
    top = 10 if given.top is None else given.top
    if top < 1:
        raise UserError(f"--top {top}: give 1 or more")
    trunk = trunk_for(given.gallery, given.ckpt_path, given.trunk)
    encoder = Encoder(given.ckpt_path, given.device, given.trust, trunk=trunk)
    samples = encoder.samples(given.gallery)
    query = query_of(encoder, given.query, samples)
    sheet = Path(given.output or "answers.png") if given.output or query.modality == "image" else None
    if sheet is not None:
        answers.check_output(sheet, query.modality)
    asked = encoder.embed(query)
    _say(samples.notes)
    with _progress(f"embedding {given.gallery}") as progress:
        gallery = Gallery.of(encoder, given.gallery, given.skip_broken, progress)
    _say_broken(gallery.left_out, len(samples.keys))
    say(f"{len(gallery.rows_GD):,} {samples.modality}s, {gallery.embedded:,} of them embedded now")
    itself = query.keys[0] if query.modality == "image" else None
    found = gallery.answers(asked, top, encoder.distance, itself)
    say(f"{SHOWN[encoder.distance]}  nearest to {given.query}")
    for answer in found:
        say(f"{answer.likeness:.4f}  {answer.name}{f'  ({answer.label})' if answer.label else ''}")
    if sheet is not None:
        answers.write_answers(query, found, sheet)
        say(f"sheet: {sheet}")
    if given.ckpt_path is None:
        labelled = "FOLDER, with one folder per class" if itself else "TABLE, with the columns text,label"
        path = labelled if samples.labels is None else shlex.quote(given.gallery)
        say(f"next: does training find more? levelfield compare {path}")


def _export(given: Any) -> None:
    from levelfield.use.export import BOUND, export

    found = export(Encoder(given.ckpt_path, "cpu", given.trust), given.output, given.data)
    for file, difference in found.items():
        say(f"{file:<10}  differs by {difference:.1e}  (at most {BOUND:.0e})")
    say(f"exported to {given.output}")


def _met_before(seen: Sequence[str], num_classes: int) -> str:
    """Whether the classes are new to the checkpoint."""
    if not seen:
        return f"the checkpoint was trained and validated on classes with other names than these {num_classes:,}"
    more = f" and {len(seen) - MOST_NAMED:,} more" if len(seen) > MOST_NAMED else ""
    named = f"{len(seen):,} of the {num_classes:,} classes have the name of a class that the checkpoint was trained or "
    return f"{named}validated on, and may not be new to it: {', '.join(seen[:MOST_NAMED])}{more}"


def _folder(checkpoint: str) -> Path:
    """The folder of a checkpoint, or of the run."""
    path = Path(checkpoint)
    return path if path.is_dir() else path.parent


def _say(notes: Sequence[str]) -> None:
    say(*(f"note: {line}" for line in notes))


def _say_broken(lines: Sequence[str], count: int) -> None:
    _say(lines[:MOST_NAMED])
    if lines:
        say(f"{len(lines):,} of {count:,} images are left out")


@contextmanager
def _progress(caption: str) -> Iterator[Callable[[int, int], Any]]:
    """A line on a terminal, nothing elsewhere."""
    with Console(stderr=True).status(Text(caption)) as status:
        yield lambda done, total: status.update(Text(f"{caption}: {done:,} of {total:,} batches"))
