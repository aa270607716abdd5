"""`levelfield predict --data`, `score`, `search` and `export`: uses of a trained checkpoint."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from levelfield.cli.evaluation_options import TRUST
from levelfield.cli.options import Options
from levelfield.core.errors import UserError
from levelfield.core.option_hints import OF_A_CHECKPOINT
from levelfield.core.terminal import say

if TYPE_CHECKING:
    from levelfield.use.encoder import Encoder

PAGES = {
    "predict": """\
usage: levelfield predict --ckpt_path FILE [--data PATH] [--output FILE]

Embeds any images or texts with a checkpoint. If the data have labels, the file has them too, and the ledger of
evaluations gets a line, because the file can be scored.

{options}

Without --data the command embeds all samples of the checkpoint's own data set into embeddings.safetensors beside the
checkpoint. It then takes the options of levelfield validate --help.

  levelfield predict --ckpt_path best.ckpt --data my_images --output my_images.parquet
""",
    "score": """\
usage: levelfield score --ckpt_path FILE --data PATH

Scores a checkpoint on all classes of a labelled data set. To score the test classes of the checkpoint's own data set,
use levelfield test. Each evaluation adds a line to the ledger of evaluations, and to ledger.jsonl beside the
checkpoint.

{options}

  levelfield score --ckpt_path best.ckpt --data my_images
""",
    "search": """\
usage: levelfield search --ckpt_path FILE --gallery PATH --query IMAGE_OR_TEXT [--top K] [--output FILE]

Finds the items of a gallery that are nearest to an image or a text. The command embeds the gallery once and keeps the
embeddings in LEVELFIELD_CACHE. If the gallery changes, it embeds only what is new.

{options}

  levelfield search --ckpt_path best.ckpt --gallery my_images --query my_images/class_0/0.png
  levelfield search --ckpt_path best.ckpt --gallery my_texts.csv --query "Where is my card?"
""",
    "export": """\
usage: levelfield export --ckpt_path FILE --output DIR [--data PATH]

Writes a checkpoint in formats for other programs, and compares each with the learner on ten samples. It fails if an
embedding differs by more than 5e-4. It needs pip install 'levelfield[export]'.

  embed.pt2, embed.onnx            torch.export and ONNX: from an image crop or tokens to the embedding
  tokenizer.json                   from a text to its tokens
  trunk.safetensors                the trunk, for timm
  embedder.safetensors, adapter/   the embedder; the adapter, for peft
  export.json, README.md           sizes and interpolation of crops; a model card

{options}

  levelfield export --ckpt_path best.ckpt --output exported
""",
}
REQUIRED = {
    "predict": ("ckpt_path", "data"),
    "score": ("ckpt_path", "data"),
    "search": ("ckpt_path", "gallery", "query"),
    "export": ("ckpt_path", "output"),
}
DATA = {
    "predict": "a folder of images; a table (.csv, .parquet) with the column path or text, and label if there is one; "
    "an image; a .txt file with one text per line",
    "score": "a folder with one folder per class; a table (.csv, .parquet) with the columns path,label or text,label; "
    "or a name from levelfield data list, in the folder LEVELFIELD_DATA",
    "export": "the ten samples, as for levelfield predict (default: random images, or ten sentences)",
}
OUTPUT = {
    "predict": ".parquet (name, label, embedding) or .safetensors (default: embeddings_<PATH>.parquet beside the "
    "checkpoint)",
    "search": ".png: a sheet of the images (default for images: answers.png); .html: a page",
    "export": "a new folder",
}
METAVARS = {"predict": "FILE", "search": "FILE", "export": "DIR"}
MOST_NAMED = 20


def main(argv: Sequence[str]) -> int:
    """Run the command that `argv` begins with; returns the exit code.

    Raises:
        UserError: a mistake in the options, no checkpoint, or data that it cannot use.
    """
    command = argv[0]
    given = _options(command).read(argv)
    for option in REQUIRED[command]:
        if getattr(given, option) is None:
            raise UserError(f"levelfield {command} needs --{option}: levelfield {command} --help")
    return {"predict": _predict, "score": _score, "search": _search, "export": _export}[command](given)


def _options(command: str) -> Options:
    options = Options(PAGES, list(PAGES), other_names=OF_A_CHECKPOINT)
    options.add_argument(
        "--ckpt_path",
        metavar="FILE",
        help="best.ckpt of a fit or of a study's job; or the folder of a study's run, which embeds with the "
        "checkpoints of all folds and concatenates the embeddings",
    )
    options.add_option("--data", used_by=("predict", "score", "export"), metavar="PATH", help=DATA.get(command))
    options.add_option(
        "--gallery",
        used_by=("search",),
        metavar="PATH",
        help="a folder of images; a table (.csv, .parquet) with the column path or text; a .txt file with one text per "
        "line",
    )
    options.add_option("--query", used_by=("search",), metavar="WHAT", help="an image file, or a text")
    options.add_option(
        "--top", used_by=("search",), type=int, default=10, metavar="K", help="number of answers (default: 10)"
    )
    options.add_option(
        "--output",
        used_by=("predict", "search", "export"),
        type=Path,
        metavar=METAVARS.get(command),
        help=OUTPUT.get(command),
    )
    options.add_option(
        "--skip-broken",
        used_by=("predict", "score", "search"),
        action="store_true",
        help="leave out images that cannot be opened, and name them",
    )
    options.add_option(
        "--device",
        used_by=("predict", "score", "search"),
        metavar="NAME",
        help="cpu or cuda (default: a GPU if there is one)",
    )
    options.add_argument("--trust", action="append", default=[], metavar="NAME", help=TRUST)
    return options


def _predict(given: Any) -> int:
    from levelfield.use.output import check_output, write_embeddings

    stem = Path(given.data).resolve().stem
    path = given.output or _folder(given.ckpt_path) / f"embeddings_{stem}.parquet"
    check_output(path)
    encoder = _encoder(given)
    samples = encoder.samples(given.data)
    _say(samples.notes)
    with _progress(f"embedding {len(samples.keys):,} {samples.modality}s") as progress:
        # Its file has the labels, so the ledger gets a line.
        embedded = encoder.embed(samples, skip_broken=given.skip_broken, progress=progress, by="levelfield predict")
    _say_broken(embedded.left_out, len(samples.keys))
    write_embeddings(embedded, path, {"checkpoint": " ".join(encoder.hash), "distance": encoder.distance})
    count, size = embedded.embeddings.shape
    labelled = "" if embedded.labels is None else f", {len(set(embedded.labels)):,} labels"
    say(f"{count:,} embeddings of {size} numbers{labelled}: {path}")
    return 0


def _score(given: Any) -> int:
    from levelfield.cli.data import dataset_named
    from levelfield.data.verify import counts_of
    from levelfield.metrics.definitions import title_of
    from levelfield.use.transfer import transfer

    dataset = dataset_named(given.data)
    encoder = _encoder(given)
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
    return 0


def _search(given: Any) -> int:
    from levelfield.use.answers import check_output, write_answers
    from levelfield.use.gallery import SHOWN, Gallery, query_of

    if given.top < 1:
        raise UserError(f"--top {given.top}: give 1 or more")
    encoder = _encoder(given)
    samples = encoder.samples(given.gallery)
    query = query_of(encoder, given.query, samples)
    output = given.output or (Path("answers.png") if query.modality == "image" else None)
    if output is not None:
        check_output(output, query.modality)
    asked = encoder.embed(query)
    _say(samples.notes)
    with _progress(f"embedding {given.gallery}") as progress:
        gallery = Gallery.of(encoder, given.gallery, given.skip_broken, progress)
    _say_broken(gallery.left_out, len(samples.keys))
    say(f"{len(gallery.rows_GD):,} {samples.modality}s, {gallery.embedded:,} of them embedded now")
    itself = query.keys[0] if query.modality == "image" else None
    answers = gallery.answers(asked, given.top, encoder.distance, itself)
    say(f"{SHOWN[encoder.distance]}  nearest to {given.query}")
    for answer in answers:
        say(f"{answer.likeness:.4f}  {answer.name}{f'  ({answer.label})' if answer.label else ''}")
    if output is not None:
        write_answers(query, answers, encoder.distance, output)
        say(f"sheet: {output}")
    return 0


def _export(given: Any) -> int:
    given.device = "cpu"
    from levelfield.use.export import export

    encoder = _encoder(given)
    found = export(encoder, given.output, given.data)
    width = max(len(each.file) for each in found)
    for each in found:
        bound = f"at most {each.bound:.0e}" if each.bound else "must be 0"
        say(f"{each.file:<{width}}  differs by {each.difference:.1e}  ({bound})")
    say(f"exported to {given.output}")
    return 0


def _met_before(seen: Sequence[str], num_classes: int) -> str:
    """Whether the classes are new to the checkpoint."""
    if not seen:
        return f"the checkpoint was trained and validated on classes with other names than these {num_classes:,}"
    more = f" and {len(seen) - MOST_NAMED:,} more" if len(seen) > MOST_NAMED else ""
    return (
        f"{len(seen):,} of the {num_classes:,} classes have the name of a class that the checkpoint was trained or "
        f"validated on, and may not be new to it: {', '.join(seen[:MOST_NAMED])}{more}"
    )


def _encoder(given: Any) -> "Encoder":
    from levelfield.use.encoder import Encoder

    return Encoder(given.ckpt_path, given.device, given.trust)


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
    """A bar on a terminal, nothing elsewhere."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(caption, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
