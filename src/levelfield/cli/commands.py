"""All commands and their options, each declared once. Needs no torch."""

from argparse import SUPPRESS, Namespace
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from levelfield import __version__
from levelfield.cli.options import Option, Options, read_of
from levelfield.core.option_hints import OF_A_CHECKPOINT, OF_A_STUDY, OF_AN_EVALUATION, OF_COMPARE, OF_TRAINING

HELP = f"""\
levelfield {__version__}: compare deep metric learning methods under equal conditions

usage: levelfield COMMAND [OPTIONS]

  compare PATH        find the best embedding for your images or texts, in N minutes
  study run FILE      compare methods over folds and runs, and test each once
  fit                 train one method on one fold
  validate, test      score a checkpoint on its validation or test classes
  predict, score      embed any data with a checkpoint, or score it on another data set
  search, export      find the nearest items in a gallery; write ONNX and torch.export files
  data list           list the data sets; also data prepare and data verify
  init NAME           write a small project of your own, with a loss, a training script and a study

levelfield COMMAND --help shows the options of a command.

first steps
  levelfield study run configs/study/quickstart.yaml
  levelfield fit --config configs/data/glyphs.yaml --model.loss ArcFaceLoss --model.loss.margin 20

  --debug             show the traceback of an error
  --version           print the version
"""
STUDY_HELP = """\
usage: levelfield study COMMAND FILE [--KEY VALUE ...]

Compares methods under equal conditions. For each method it searches the arguments on the validation folds (if the
study file asks for it), trains on each fold in each run, then scores all checkpoints once on the test classes. It
scores the untrained trunk too. You can stop a study at any time: the same command continues it.

  run       train, test and print the table
  resume    continue a stopped study with the settings that it began with
  status    show finished, running, failed and remaining jobs, and the time left
  report    print the table again, and write its files and the page again
  verify    compute the tables again from the stored embeddings and compare
  archive   pack the results and tables of a finished study into one small file

FILE is a study file: a path, or a name in configs/study. All commands but run also take the folder of a study. status,
report and verify also take an archive.

levelfield study COMMAND --help shows the options of one command.

  levelfield study run quickstart.yaml
  levelfield study run quickstart.yaml --add-method my_loss.MyLoss
  levelfield study status quickstart.yaml
"""
DATA_HELP = """\
usage: levelfield data list|verify|prepare [NAME ...] [OPTIONS]

Lists, checks and downloads the data sets that levelfield knows by name. Without NAME: all of them.

  list            show classes, samples, whether a data set is ready, split, licence, source; with NAME: one card each
  verify          compare the counts with the published ones and open every sample; list problems and duplicates; exit
                  with 2 if there are problems; also checks your own folder of class folders or table (.csv, .parquet)
  prepare         download, check and unpack the files; files that need your agreement you download yourself

levelfield data COMMAND --help shows the options of one command.

  levelfield data list
  levelfield data prepare cub200 --root DIR
  levelfield data verify omniglot --root DIR
  levelfield data verify my_images.csv

Your own data need no name: levelfield compare my_images
"""
OF_A_JOB = """\
settings:
  --executor.workers N  parallel jobs (default: as many as cores, memory and GPUs allow)
  --executor.devices    the GPUs that the workers take in turn: [0,1]
  --search.trials N     settings to try for each method before its runs; also --search.folds N, --search.batch N,
                        --search.sampler gp|tpe|random, --searches.arcface N
  --SECTION.KEY VALUE   any setting of levelfield fit, for all methods: --data.root DIR, --trainer.max_epochs 2

"""
OF_A_SCORE = """\
settings:
  --data.root DIR       where the data set is now; if you moved your own data: --data.dataset.folder or .table
  --data.num_workers N, --data.eval_batch_size N, --trainer.devices N, --trainer.precision P
                        how scores are computed

"""


def _option(given: str, help: str, **how: Any) -> Option:
    """`--top K` takes a value, `--json` does not; `--trust NAME *` may be repeated."""
    words = given.split()
    names = tuple(word for word in words if word.startswith("-"))
    if words[-1] == "*":
        how = {"action": "append", "default": [], **how}
    elif len(names) == len(words):
        return names, {"action": "store_true", "help": help, **how}
    return names, {"metavar": words[len(names)], "help": help, **how}


def _argument(name: str, metavar: str, help: str, **how: Any) -> Option:
    return (name,), {"metavar": metavar, "help": help, **how}


ANY_DATA = "a folder of images; a table (.csv, .parquet) with the column path or text"
LABELLED_DATA = (
    "a folder with one folder per class, or a table (.csv, .parquet) with the columns path,label or text,label"
)
LINES = ".txt file with one text per line"

# Of checkpoints.
TRUST = _option(
    "--trust NAME *", "a module or class of your own that the checkpoint may load (docs/security.md); repeatable"
)
CONFIG = _option("-c --config FILE *", "YAML file; repeatable: later files win, options win over files")
PRINT = _option("--print_config", "print the resulting configuration and exit")
SCORED = (
    _option("--ckpt_path FILE *", "best.ckpt of a fit or of a study's job", required=True),
    *(TRUST, CONFIG, PRINT),
)
REOPEN = _option("--reopen-test --reopen_test REASON", "score the test classes again; the ledger records the reason")
CHECKPOINT = _option(
    "--ckpt_path FILE",
    "best.ckpt of a fit or of a study's job; or the folder of a study's run, which embeds with the checkpoints of all "
    "folds and concatenates the embeddings",
    required=True,
)
EMBEDS = (
    TRUST,
    _option("--skip-broken", "leave out images that cannot be opened, and name them"),
    _option("--device NAME", "cpu or cuda (default: a GPU if there is one)"),
)
# Of commands that need no checkpoint.
ANY_CHECKPOINT = (
    (CHECKPOINT[0], {**CHECKPOINT[1], "required": False}),
    _option(
        "--trunk FILE",
        "a file of configs/trunk, without a checkpoint: its features (default: efficientnet_lite0; for texts minilm)",
    ),
)
EVALUATIONS = {
    name: Options(
        *(name, "--ckpt_path FILE [--KEY VALUE ...]"),
        f"{what}\nLearner and data come from the checkpoint: the command rejects options that would change them.",
        [*SCORED, *([REOPEN] if name == "test" else [])],
        f"{OF_A_SCORE}  levelfield {name} --ckpt_path best.ckpt",
        settings=(),
        other_names=OF_AN_EVALUATION,
    )
    for name, what in {
        "validate": "Scores a checkpoint on its validation fold.",
        "test": "Scores a checkpoint on the test classes, and counts the evaluations.",
        "predict": "Embeds all samples of the checkpoint's own data set into embeddings.safetensors beside it.",
    }.items()
}
FIT = Options(
    *("fit", "[--config FILE ...] [--KEY VALUE ...]"),
    "Trains one method on one fold and keeps the best checkpoint.",
    [CONFIG, PRINT, _option("--resume", "continue the newest stopped fit with these settings")],
    f"""\
settings:
  --name NAME            folder of this fit (default: <data set>-<loss>)
  --output DIR           folder for all output (default: outputs)
  --seed_everything N    seed of weights, batches and augmentation (default: 0)
  --ckpt_path FILE       checkpoint with the initial weights of a new fit

{Path(__file__).with_name("fit.txt").read_text(encoding="utf-8")}
Arguments of a class: --model.loss ArcFaceLoss --model.loss.margin 20
A learner of your own: --model my_learner.MyLearner (docs/own_parts.md)
trainer: any argument of Lightning's Trainer, e.g. --trainer.max_epochs 5 --trainer.devices 2
Callbacks: --trainer.callbacks+ GradientCheckpointing   recompute activations to save memory; one extra forward pass
           --trainer.callbacks+ GradientCaching --trainer.callbacks.chunk_size 64   batches that exceed memory
All settings with their defaults: --print_config""",
    settings=("seed_everything", "name", "output", "checkpoint_seconds", "ckpt_path"),
    other_names=OF_TRAINING,
)
PREDICT_DATA = Options(
    *("predict", "[--ckpt_path FILE] [--data PATH] [--output FILE]"),
    """\
Embeds any images or texts with a checkpoint, or without one by the features of a pretrained trunk. If the data have
labels, the file has them too, and the ledger of evaluations gets a line, because the file can be scored. Without --data
the command embeds all samples of the checkpoint's own data set into embeddings.safetensors beside the checkpoint, and
takes the options of levelfield validate --help.""",
    [
        *ANY_CHECKPOINT,
        *EMBEDS,
        _option("--data PATH", f"{ANY_DATA}, and label if there is one; an image; a {LINES}", required=True),
        _option(
            "--output FILE",
            ".parquet (name, label, embedding) or .safetensors (default: embeddings_<PATH>.parquet beside best.ckpt)",
            type=Path,
        ),
    ],
    "  levelfield predict --ckpt_path best.ckpt --data my_images --output my_images.parquet",
    other_names=OF_A_CHECKPOINT,
)
SCORE = Options(
    *("score", "--ckpt_path FILE --data PATH"),
    """\
Scores a checkpoint on all classes of a labelled data set. To score the test classes of the checkpoint's own data set,
use levelfield test. Each evaluation adds a line to the ledger of evaluations, and to ledger.jsonl beside the
checkpoint.""",
    [
        *(CHECKPOINT, *EMBEDS),
        _option(
            "--data PATH",
            f"{LABELLED_DATA}; or a name from levelfield data list, in the folder LEVELFIELD_DATA",
            required=True,
        ),
    ],
    "  levelfield score --ckpt_path best.ckpt --data my_images",
    other_names=OF_A_CHECKPOINT,
)
SEARCH = Options(
    *("search", "GALLERY --query IMAGE_OR_TEXT [--ckpt_path FILE] [--top K] [--output FILE]"),
    """\
Finds the items of a gallery that are nearest to an image or a text. Without a checkpoint it compares the features of a
pretrained trunk, so it needs no labels and no training. The command embeds the gallery once and keeps the
embeddings in LEVELFIELD_CACHE. If the gallery changes, it embeds only what is new.""",
    [
        _argument("gallery", "GALLERY", f"{ANY_DATA}; a {LINES}"),
        *(*ANY_CHECKPOINT, *EMBEDS),
        _option("--query WHAT", "an image file, or a text", required=True),
        _option("--top K", "number of answers (default: 10)", type=int, default=10),
        _option("--output FILE", "a sheet of the images (default: answers.png)", type=Path),
    ],
    """\
  levelfield search my_images --query photo.jpg
  levelfield search my_images --query my_images/class_0/0.png --ckpt_path best.ckpt
  levelfield search my_texts.csv --query "Where is my card?\"""",
    other_names=OF_A_CHECKPOINT,
)
EXPORT = Options(
    *("export", "--ckpt_path FILE --output DIR [--data PATH]"),
    """\
Writes a checkpoint in formats for other programs, and compares each with the learner on ten samples. It fails if an
embedding differs by more than 5e-4. It needs pip install 'levelfield[export]'.

  embed.pt2, embed.onnx            torch.export and ONNX: from an image crop or tokens to the embedding
  tokenizer.json                   from a text to its tokens
  trunk.safetensors                the trunk, for timm
  embedder.safetensors, adapter/   the embedder; the adapter, for peft
  export.json, README.md           sizes and interpolation of crops; a model card""",
    [
        *(CHECKPOINT, TRUST),
        _option("--data PATH", "the ten samples, as for levelfield predict (default: random images, or ten sentences)"),
        _option("--output DIR", "a new folder", required=True, type=Path),
    ],
    "  levelfield export --ckpt_path best.ckpt --output exported",
    other_names=OF_A_CHECKPOINT,
)

# Of studies.
FILE = _argument("file", "FILE", "a study file: a path, or a name in configs/study; or the study's folder")
ADD_METHOD = _option(
    "--add-method METHOD *",
    "add a method: a loss (ArcFaceLoss, your own my_loss.MyLoss), a file of configs/method (ntxent_koleo) or your own "
    "file (my_method.yaml); repeatable",
)
ARCHIVE = _option("--from ARCHIVE", "begin with the results in an archive of the same study", dest="archive", type=Path)
STUDY_FOLDER = (
    _option("--output DIR", "folder of the study (default: outputs/<name of the study>)", type=Path),
    _option("--debug", "show the traceback of an error, also in your own class"),
)
JSON = _option("--json", "print lines of JSON on standard output")
# Of `study run`; `compare` shows only the first two.
STOP = (
    _option("--stop-here", "stop training, and score the complete runs on the test classes"),
    _option("--dry-run", "print the jobs and train nothing"),
)
RUNS = (
    _option("--config FILE *", "settings of levelfield fit for all methods, e.g. logger/wandb.yaml; repeatable"),
    _option(
        "--recompute METHOD *",
        "compute the results of a method again after its code or settings changed; `all` for all; repeatable",
    ),
    _option("--reopen-test REASON", "score on the test classes again; the reason is recorded and shown"),
    _option("--test-without-failed-runs", "score the other runs although some failed"),
    _option(
        "--metrics NAME",
        "more test scores than MAP@R, R-precision and P@1: recall_at_16, map_at_1024, map, mrr, nmi, nmi_geometric, "
        "ami, f1, or your own function my_metric.hubness (docs/metrics.md)",
        nargs="+",
    ),
    _option(
        "--selected_by NAME",
        "the validation score that selects epochs and trials; the largest wins (default: map_at_r)",
    ),
    _option("--compare METHOD", "compare only this method with the others: fewer comparisons, so a smaller correction"),
    _option("--folds N", "class folds, each validated once; 1 trains on all classes and validates nothing", type=int),
    _option("--runs N", "repetitions with new seeds", type=int),
    _option(
        "--searches N", "searches of each method, each with its own seed; 2 show what is luck of the search", type=int
    ),
    _option("--replicates N", "repetitions of the whole study with other halves, folds, searches and seeds", type=int),
    _option("--seed N", "the seed that the seeds of all jobs follow from", type=int),
    _option("--threads N", "CPU threads of a job; another number gives slightly different weights", type=int),
    _option(
        "--executor NAME",
        "where jobs run: local (default), or ray, on the nodes of a cluster (docs/ray_and_slurm.md)",
        default="local",
    ),
)


def _study(name: str, about: str, examples: str, *options: Option, file: str = "FILE_OR_FOLDER_OR_ARCHIVE") -> Options:
    runs = name in ("run", "resume")
    command = Options(
        *(f"study {name}", f"{file} [--KEY VALUE ...]", about),
        [FILE, *options, *((*STOP, *RUNS) * runs), *([JSON] if runs or name == "status" else []), *STUDY_FOLDER],
        OF_A_JOB * runs + examples,
        settings=() if runs else None,
        other_names=OF_A_STUDY,
    )
    command.set_defaults(json=False, add_method=[], archive=None)
    return command


STUDY = {
    "run": _study(
        "run",
        "Trains the methods of a study file, scores them once on the test classes and prints the table. The same "
        "command\ncontinues a stopped study.",
        """\
  levelfield study run quickstart.yaml --add-method my_loss.MyLoss
  levelfield study run own_images_quick.yaml --data.dataset.table my_images.csv
  levelfield study run laptop/glyphs --from glyphs.tar.xz --add-method my_loss.MyLoss""",
        *(ADD_METHOD, ARCHIVE),
        file="FILE",
    ),
    "resume": _study(
        "resume",
        "Continues a stopped study with the settings in its folder. It rejects settings that would change a result.",
        "  levelfield study resume outputs/own_images_quick",
        file="FILE_OR_FOLDER",
    ),
    "status": _study(
        "status",
        "Shows finished, running, failed and remaining jobs, and the time left.",
        "  levelfield study status outputs/quickstart",
    ),
    "report": _study(
        "report",
        "Prints the table, and writes results.csv, summary.csv and the page again. An archive needs --output.",
        "  levelfield study report outputs/quickstart --figures figures",
        _option("--figures DIR", "write the figures as SVG and PDF, for a paper", type=Path),
    ),
    "table": _study(
        "table",
        "Prints the test scores as a table for a paper, with as many digits as the intervals allow.",
        "  levelfield study table outputs/quickstart --format markdown",
        _option(
            "--format NAME",
            "latex (default; with booktabs) or markdown",
            choices=["latex", "markdown"],
            default="latex",
        ),
    ),
    "verify": _study(
        "verify",
        "Computes results.csv and summary.csv again from the stored embeddings. Exits with 2 if a number differs.",
        "  levelfield study verify outputs/quickstart",
    ),
    "archive": _study(
        "archive",
        "Packs the results and tables of a finished study into one small file, without weights.",
        "  levelfield study archive outputs/quickstart --to quickstart.tar.xz",
        _option("--to FILE", "the archive to write (default: beside the folder of the study)", type=Path),
        file="FILE_OR_FOLDER",
    ),
}
MINUTES = 30.0
COMPARE = Options(
    *("compare", "PATH [--KEY VALUE ...]"),
    """\
Finds the best embedding for your data, and whether training pays. The command compares, from cheap to expensive: the
features of a pretrained trunk, their PCA and whitening, a linear layer trained on the frozen trunk, and the whole trunk
trained with two losses, with and without averaging its weights with the pretrained ones. It splits the classes at
random: one half trains and validates, the other half is tested once, at the end. Validation selects the method: the
features, unless another row is clearly above them. At the end it prints which method to use and the command to use it.
The same command continues a stopped comparison.""",
    [
        _argument("file", "PATH", f"{LABELLED_DATA}; at least 8 classes"),
        _option(
            "--minutes N",
            f"training time on this machine (default: {MINUTES:g}); more time: more folds, larger images, more steps",
            type=float,
        ),
        _option(
            "--trunk FILE",
            "the trunk to use (configs/trunk/convnext_tiny.yaml); of several, the one with the best features",
            **{"nargs": "+", "action": "extend", "default": []},
        ),
        _option("--skip-broken", "leave out images that cannot be opened (default: stop)"),
        _option(
            "--cheapest", "of the rows clearly above the features, use the cheapest that is about as good as the best"
        ),
        *(ADD_METHOD, *STOP, JSON, *STUDY_FOLDER),
        *((names, {**how, "help": SUPPRESS}) for names, how in (ARCHIVE, *RUNS)),
    ],
    """\
settings:
  --executor.workers N  parallel jobs (default: one per core)
  --data.KEY VALUE      settings of the data, e.g. --data.transforms.crop_size 96

  levelfield compare my_images
  levelfield compare my_texts.csv --minutes 10
  levelfield compare my_images --trunk configs/trunk/convnext_tiny.yaml configs/trunk/efficientnet_lite0.yaml

To compare 14 losses: levelfield study run own_images_quick.yaml --data.dataset.table FILE""",
    settings=(),
    other_names=OF_COMPARE,
)

# Of data.
ROOT = _option("--root --data.root DIR", "the folder with the data sets (default: LEVELFIELD_DATA)")
DATA = {
    "list": Options(
        *("data list", "[NAME ...] [--root DIR]"),
        "Shows the named data sets: classes, samples, whether they are ready, split, licence, source. With NAME: one "
        "card each.",
        [_argument("names", "NAME", "names of data sets", nargs="*"), ROOT],
        "  levelfield data list --root DIR\n  levelfield data list omniglot",
    ),
    "verify": Options(
        *("data verify", "[NAME, FILE or FOLDER ...] [--root DIR]"),
        """\
Compares the counts with the published ones and opens every sample (test classes too). It hashes all files again.
Lists problems and duplicates. Exits with 2 if there are problems. FILE is a table (.csv, .parquet) and FOLDER a folder
of class folders of your own.""",
        [_argument("names", "NAME", "names of data sets, or paths of your own", nargs="*"), ROOT],
        "  levelfield data verify omniglot --root DIR\n  levelfield data verify my_images.csv",
    ),
    "prepare": Options(
        *("data prepare", "NAME ... [--root DIR] [--archive FILE ...]"),
        "Downloads, checks and unpacks the files of a data set. The same command starts a stopped download again.",
        [
            _argument("names", "NAME", "names of data sets (levelfield data list shows them)", nargs="+"),
            ROOT,
            _option("--archive FILE *", "a file that you have downloaded yourself; repeatable"),
        ],
        "  levelfield data prepare cub200 --root DIR",
    ),
}
INIT = Options(
    *("init", "NAME"),
    """\
Writes a small project of your own into a new folder, with levelfield as a dependency: a loss, its test, a training
script with plain Lightning, a study, a notebook, a W&B sweep and a workflow.""",
    [_argument("folder", "NAME", "the name of its Python package")],
    "  levelfield init my_project",
)

USES = {"score": SCORE, "search": SEARCH, "export": EXPORT}
SINGLE = {"compare": COMPARE, "fit": FIT, **EVALUATIONS, **USES, "init": INIT}
GROUPS: Mapping[str, tuple[Mapping[str, Options], str]] = {"study": (STUDY, STUDY_HELP), "data": (DATA, DATA_HELP)}
SIBLINGS = ({**EVALUATIONS, "fit": FIT}, {"predict": PREDICT_DATA, **USES})  # an option may be another one's
COMMANDS = (*SINGLE, *GROUPS)
# The module of each command.
MODULES = {**dict.fromkeys(COMMANDS), **dict.fromkeys(EVALUATIONS, "evaluate"), **dict.fromkeys(USES, "use")}


def read(name: str, words: Sequence[str]) -> Namespace:
    """The options of a command; `module` is the module that runs it, `words` are the words.

    Raises:
        SystemExit: the help was requested, and is printed.
        UserError: a mistake in the options.
    """
    module = MODULES[name] or name
    if name in GROUPS:
        given = read_of(*GROUPS[name], words)
    else:
        options = SINGLE[name]
        if name == "predict" and {word.partition("=")[0] for word in words} & {"--data", "-h", "--help"}:
            options, module = PREDICT_DATA, "use"
        options.siblings = next((group for group in SIBLINGS if options in group.values()), {})
        given = options.read(words or ["--help"] * (name in ("compare", "init")))
    given.module, given.words = f"levelfield.cli.{module}", list(words)
    return given


def run(name: str, words: Sequence[str]) -> int:
    """Read the options of a command and run it; returns the exit code."""
    given = read(name, words)
    return int(import_module(given.module).main(given))
