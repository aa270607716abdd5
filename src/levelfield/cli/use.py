"""`levelfield predict --data`, `score`, `search` and `export`: what is done with a checkpoint that is trained."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from levelfield.cli.options import Options
from levelfield.errors import UserError

if TYPE_CHECKING:
    from levelfield.use.encoder import Encoder

CHECKPOINT_HELP = """\
  --ckpt_path FILE    the best.ckpt of a fit or of a study's job; the folder of a study's run embeds with all its folds
                      (embeddings side by side)
  --device DEVICE     cpu or cuda; without it a GPU if there is one
  --trust NAME        a module or class of your own that the checkpoint may use (docs/security.md); several times
"""
DATA_HELP = """\
  --data PATH         a folder of pictures, in class folders or not; a table (.csv, .parquet) with the column path or
                      text, and label where there are labels; a picture; a .txt file with a text a line
  --skip-broken       leave out the pictures that cannot be opened, and name them
"""
HELP = {
    "predict": f"""\
usage: levelfield predict --ckpt_path FILE [--data PATH] [--output FILE]

Embeds any data with a checkpoint: its trunk, its evaluation transforms. Of labelled data the file has the labels, too,
so that it can be scored: the ledger of the data set's evaluations gets a line.

{CHECKPOINT_HELP}{DATA_HELP}\
  --output FILE       .parquet (name, label, embedding) or .safetensors; without it embeddings_<PATH>.parquet beside the
                      checkpoint

Without --data it embeds all samples of the data set that the checkpoint was trained on, into embeddings.safetensors
beside the checkpoint, and takes the options of validate and test (levelfield validate --help).

  levelfield predict --ckpt_path best.ckpt --data my_images --output my_images.parquet
""",
    "score": f"""\
usage: levelfield score --ckpt_path FILE --data PATH

Scores a checkpoint on a labelled set: what it has learnt of classes that it never saw. All classes of the set take
part; levelfield test scores the unseen classes of the set that it was trained on. Each time is a line in the ledger of
the set's evaluations, with a copy in ledger.jsonl beside the checkpoint.

{CHECKPOINT_HELP}\
  --data PATH         a folder with a folder a class; a table (.csv, .parquet) with the columns path,label or
                      text,label; or a set that levelfield data list names, below LEVELFIELD_DATA
  --hierarchy         also how many of the nearest are at least of the same coarse class, where a set has such
  --open-set          also whether one threshold tells pairs of one class from others: TAR at FAR, EER, AUROC
  --rerank WAY        also the scores after ranking anew: k_reciprocal, with settings as in k_reciprocal:k1=10,k2=4
                      (docs/metrics.md); several times
  --skip-broken       leave out the pictures that cannot be opened, and name them

  levelfield score --ckpt_path best.ckpt --data my_images
""",
    "search": f"""\
usage: levelfield search --ckpt_path FILE --gallery PATH --query PICTURE_OR_TEXT [--top K] [--output FILE]

What of a gallery is nearest to a picture, or to a sentence. The gallery is embedded once; its index is kept in a hidden
folder beside it (.levelfield; in LEVELFIELD_CACHE where that cannot be written), and renewed where it changes.

{CHECKPOINT_HELP}\
  --gallery PATH      a folder of pictures; a table (.csv, .parquet) with the column path or text; a .txt file with a
                      text a line
  --query WHAT        the file of a picture, or a text
  --top K             how many answers (default: 10)
  --rerank WAY        rank anew: k_reciprocal, with settings as in k_reciprocal:k1=10,k2=4 (docs/metrics.md); the
                      gallery's items are compared with each other for it
  --output FILE       .png: a sheet of the pictures (default for pictures: answers.png); .html: a page
  --skip-broken       leave out the pictures that cannot be opened, and name them

  levelfield search --ckpt_path best.ckpt --gallery my_images --query my_images/class_0/0.png
  levelfield search --ckpt_path best.ckpt --gallery my_texts.csv --query "Where is my card?"
""",
    "export": """\
usage: levelfield export --ckpt_path FILE --output DIR [--data PATH]

Writes a checkpoint in the forms that other programs load, each compared with the learner on ten samples; one that
differs by more than 5e-4 is refused.

  --ckpt_path FILE    the best.ckpt of a fit or of a study's job, or the folder of a study's run
  --trust NAME        a module or class of your own that the checkpoint may use (docs/security.md); several times
  --output DIR        a folder that is not there yet: embed.pt2 (torch.export) and embed.onnx, from a picture's crop or
                      a text's tokens to the embedding; preprocess.pt2 and .onnx, or tokenizer.json; trunk.safetensors,
                      which timm reads, and embedder.safetensors; adapter/, as peft has it; README.md, a model card
  --data PATH         the ten samples, in the forms of levelfield predict; without it coarse noise, or ten sentences

  levelfield export --ckpt_path best.ckpt --output exported

It needs pip install 'levelfield[export]'.
""",
}
REQUIRED = {
    "predict": ("ckpt_path", "data"),
    "score": ("ckpt_path", "data"),
    "search": ("ckpt_path", "gallery", "query"),
    "export": ("ckpt_path", "output"),
}
MOST_NAMED = 20


def main(argv: Sequence[str]) -> int:
    """Run the command that `argv` begins with; returns the exit code.

    Raises:
        UserError: a mistake in the options, no checkpoint, or data that it cannot use.
    """
    command = argv[0]
    if {"-h", "--help"} & set(argv):
        print(HELP[command], end="")
        return 0
    options = Options(HELP[command], list(HELP))
    options.add_argument("--ckpt_path")
    options.add_argument("--trust", action="append", default=[])
    options.add_option("--device", used_by=("predict", "score", "search"))
    options.add_option("--data", used_by=("predict", "score", "export"))
    options.add_option("--skip-broken", used_by=("predict", "score", "search"), action="store_true")
    options.add_option("--hierarchy", used_by=("score",), action="store_true")
    options.add_option("--open-set", used_by=("score",), action="store_true")
    options.add_option("--rerank", used_by=("score", "search"), action="append", default=[])
    options.add_option("--output", used_by=("predict", "search", "export"), type=Path)
    options.add_option("--gallery", used_by=("search",))
    options.add_option("--query", used_by=("search",))
    options.add_option("--top", used_by=("search",), type=int, default=10)
    given = options.read(argv)
    for option in REQUIRED[command]:
        if getattr(given, option) is None:
            raise UserError(f"levelfield {command} needs --{option}: levelfield {command} --help")
    return {"predict": _predict, "score": _score, "search": _search, "export": _export}[command](given)


def _predict(given: Any) -> int:
    from levelfield.use.output import check_output, write_embeddings
    from levelfield.use.samples import record_labelled

    stem = Path(given.data).resolve().stem
    path = given.output or _folder(given.ckpt_path) / f"embeddings_{stem}.parquet"
    check_output(path)
    encoder = _encoder(given)
    samples = encoder.samples(given.data)
    _say(samples.notes)
    with _progress(f"embedding {len(samples.keys):,} {samples.modality}s") as progress:
        embedded = encoder.embed(samples, skip_broken=given.skip_broken, progress=progress)
    _say_broken(embedded.left_out, len(samples.keys))
    record_labelled(given.data, samples, "levelfield predict", encoder.hashes)  # the file holds the labels
    write_embeddings(embedded, path, {"checkpoint": " ".join(encoder.hash), "distance": encoder.distance})
    count, size = embedded.embeddings.shape
    labelled = "" if embedded.labels is None else f", {len(set(embedded.labels)):,} labels"
    print(f"{count:,} embeddings of {size} numbers{labelled}: {path}")
    return 0


def _score(given: Any) -> int:
    from levelfield.cli.data import dataset_named
    from levelfield.data.overview import counts_of
    from levelfield.metrics.table import title_of
    from levelfield.use.further import Further, rerankings
    from levelfield.use.transfer import transfer

    further = Further(given.hierarchy, given.open_set, rerankings(given.rerank))
    dataset = dataset_named(given.data)
    encoder = _encoder(given)
    further.check(encoder.distance, dataset)
    encoder.learners[0].trunk.check_takes(dataset)
    with _progress(f"embedding {given.data}") as progress:
        found = transfer(encoder, dataset, _folder(given.ckpt_path), given.skip_broken, progress, further)
    _say_broken(found.left_out, len(dataset.read_index().keys))
    print(counts_of(dataset.name, dataset.read_index()))
    print(_met_before(found.seen, found.num_classes))
    for metric, score in found.scores.items():
        interval = "" if score.ci95 is None else f" ± {100 * score.ci95:.1f}"
        print(f"  {title_of(metric):<12}{100 * score.value:5.1f}{interval}")
    for section in found.further:
        print("\n".join(section.lines()))
    print(f"Percent; ± is half a 95% interval over the {found.num_classes:,} classes.")
    if found.num_skipped:
        print(f"{found.num_skipped:,} samples have no other of their class, and ask for none.")
    print(f"evaluation {found.evaluations} on this set, recorded in {found.ledger}")
    return 0


def _search(given: Any) -> int:
    from levelfield.use.answers import check_output, write_answers
    from levelfield.use.further import Further, rerankings
    from levelfield.use.gallery import SHOWN, Gallery, query_of

    if given.top < 1:
        raise UserError(f"--top {given.top}: give 1 or more")
    ways = rerankings(given.rerank)
    if len(ways) > 1:
        raise UserError(f"--rerank is given {len(ways)} times: a search ranks in one way")
    encoder = _encoder(given)
    Further(rerank=ways).check(encoder.distance)
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
    print(f"{len(gallery.rows_GD):,} {samples.modality}s, {gallery.embedded:,} of them embedded now: {gallery.file}")
    itself = query.keys[0] if query.modality == "image" else None
    answers = gallery.answers(asked, given.top, encoder.distance, itself, *ways)
    by = f", ranked anew by {ways[0]}" if ways else ""
    print(f"{SHOWN[encoder.distance]}  nearest to {given.query}{by}")
    for answer in answers:
        print(f"{answer.likeness:.4f}  {answer.name}{f'  ({answer.label})' if answer.label else ''}")
    if output is not None:
        write_answers(query, answers, encoder.distance, output)
        print(f"to look at: {output}")
    return 0


def _export(given: Any) -> int:
    given.device = "cpu"
    from levelfield.use.export import export

    encoder = _encoder(given)
    found = export(encoder, given.output, given.data)
    width = max(len(each.file) for each in found)
    for each in found:
        bound = "" if each.bound is None else f"  (at most {each.bound:.0e})" if each.bound else "  (must be 0)"
        print(f"{each.file:<{width}}  differs by {each.difference:.1e}{bound}")
    print(f"exported to {given.output}")
    return 0


def _met_before(seen: Sequence[str], num_classes: int) -> str:
    """Whether the classes are new to the checkpoint."""
    if not seen:
        return f"none of the {num_classes:,} classes is called like one that the checkpoint was trained or validated on"
    more = f" and {len(seen) - MOST_NAMED:,} more" if len(seen) > MOST_NAMED else ""
    return (
        f"{len(seen):,} of the {num_classes:,} classes are called like those that the checkpoint was trained or "
        f"validated on, and may not be new to it: {', '.join(seen[:MOST_NAMED])}{more}"
    )


def _encoder(given: Any) -> "Encoder":
    from levelfield.use.encoder import Encoder

    return Encoder(given.ckpt_path, given.device, given.trust)


def _folder(checkpoint: str) -> Path:
    """Where what is said of a checkpoint lies: beside it, or in the folder of the run."""
    path = Path(checkpoint)
    return path if path.is_dir() else path.parent


def _say(notes: Sequence[str]) -> None:
    print("".join(f"note: {line}\n" for line in notes), end="")


def _say_broken(lines: Sequence[str], count: int) -> None:
    _say(lines[:MOST_NAMED])
    if lines:
        print(f"{len(lines):,} of {count:,} pictures are left out")


@contextmanager
def _progress(caption: str) -> Iterator[Callable[[int, int], Any]]:
    """A bar on a terminal, nothing elsewhere."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(caption, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
