"""All commands and their options, each declared once, as their help shows them. Needs no torch."""

from argparse import SUPPRESS, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from levelfield import __version__
from levelfield.cli.options import Command
from levelfield.core.option_hints import (
    COMMANDS,
    OF_A_CHECKPOINT,
    OF_A_STUDY,
    OF_AN_EVALUATION,
    OF_COMPARE,
    OF_TRAINING,
)

ANY_DATA = "a folder of images; a table (.csv, .parquet) with the column path or text"
LABELLED_DATA = (
    "a folder with one folder per class, or a table (.csv, .parquet) with the columns path,label or text,label"
)
LINES = ".txt file with one text per line"
LEVELFIELD = Command(
    other_names=COMMANDS,
    prog="levelfield",
    description=f"levelfield {__version__}: compare deep metric learning methods under equal conditions",
    epilog="""\
levelfield COMMAND --help shows the options of a command, --debug the traceback of an error, --version the version.
  levelfield study run configs/study/quickstart.yaml
  levelfield fit --config configs/data/glyphs.yaml --model.loss ArcFaceLoss --model.loss.margin 20""",
).group()
LEVELFIELD.add_argument("--version", action="version", version=__version__, help=SUPPRESS)

# Your data.
ADD_METHOD = """
--add-method METHOD *  add a method: a loss (ArcFaceLoss, your own my_loss.MyLoss), a file of configs/method
  (ntxent_koleo) or your own file (my_method.yaml); repeatable"""
ARCHIVE = "\n--from ARCHIVE  begin with the results in an archive of the same study"
OUTPUT = "\n--output DIR  folder of the study (default: outputs/<name of the study>)"
JSON = "\n--json  end with a line of JSON on standard output: the decision of compare, and all scores"
# Of `study run`; the help of `compare` shows only the first two.
STOP = """
--stop-here  stop training, and score the complete runs on the test classes
--dry-run  print the jobs and train nothing"""
RUNS = """
--config FILE *  settings of levelfield fit for all methods, e.g. logger/wandb.yaml; repeatable
--recompute METHOD *  compute the results of a method again after its code or settings changed; `all` for all;
  repeatable
--reopen-test REASON  score on the test classes again; the reason is recorded and shown
--metrics NAME +  more test scores than MAP@R, R-precision and P@1: recall_at_16, map_at_1024, map, mrr, nmi,
  nmi_geometric, ami, f1, or your own function my_metric.hubness (docs/metrics.md)
--selected_by NAME  the validation score that selects epochs and trials; the largest wins (default: map_at_r)
--compare METHOD  compare only this method with the others: fewer comparisons, so a smaller correction
--folds N  class folds, each validated once; 1 trains on all classes and validates nothing
--runs N  repetitions with new seeds
--searches N  searches of each method, each with its own seed; 2 show what is luck of the search
--replicates N  repetitions of the whole study with other halves, folds, searches and seeds
--seed N  the seed that the seeds of all jobs follow from
--threads N  CPU threads of a job; another number gives slightly different weights
--executor NAME  where jobs run: local (default), or ray, on the nodes of a cluster (docs/ray_and_slurm.md)"""
MINUTES = 30.0
LEVELFIELD.add(
    "compare",
    """\
Finds the best embedding for your data, and whether training pays. The command compares, from cheap to expensive: the
features of a pretrained trunk, their PCA and whitening, a linear layer trained on the frozen trunk, and the whole trunk
trained with two losses, with and without averaging its weights with the pretrained ones. It splits the classes at
random: one half trains and validates, the other half is tested once, at the end. Validation selects the method: the
features, unless another row is clearly above them. At the end it prints which method to use and the command to use it.
The same command continues a stopped comparison.""",
    f"""
PATH  {LABELLED_DATA}; at least 8 classes
--minutes MINUTES  training time on this machine (default: {MINUTES:g}); more time: more folds, larger images, more
  steps
--trunk FILE +  the trunk to use (configs/trunk/convnext_tiny.yaml); of several, the one with the best features
--skip-broken  leave out images that cannot be opened (default: stop)
--cheapest  of the rows clearly above the features, use the cheapest that is about as good as the best"""
    f"{ADD_METHOD}{STOP}{JSON}{OUTPUT}",
    hidden=ARCHIVE + RUNS,
    epilog="""\
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

# Studies.
STUDY = LEVELFIELD.add(
    "study",
    """\
Compares methods under equal conditions. For each method it searches the arguments on the validation folds (if the
study file asks for it), trains on each fold in each run, then scores all checkpoints once on the test classes. It
scores the untrained trunk too. You can stop a study at any time: the same command continues it.""",
    epilog="""\
  levelfield study run quickstart.yaml
  levelfield study run quickstart.yaml --add-method my_loss.MyLoss
  levelfield study status quickstart.yaml
  levelfield study report outputs/quickstart --figures figures""",
).group()
FILE = "\nFILE  a study file: a path, or a name in configs/study"
OR_FOLDER = "; or the study's folder"
OR_ARCHIVE = "; or its folder, or an archive of it"
OF_A_JOB = """\
settings:
  --executor.workers N  parallel jobs (default: as many as cores, memory and GPUs allow)
                        (CUDA_VISIBLE_DEVICES=0,1 names the GPUs that they take in turn)
  --search.trials N     settings to try for each method before its runs; also --search.folds N, --search.batch N,
                        --search.sampler gp|tpe|random
  --SECTION.KEY VALUE   any setting of levelfield fit, for all methods: --data.root DIR, --trainer.max_epochs 2

"""
STUDY.add(
    "run",
    """\
Trains the methods of a study file, scores them once on the test classes and prints the table. The same command
continues a stopped study.""",
    FILE + ADD_METHOD + ARCHIVE + STOP + RUNS + JSON + OUTPUT,
    epilog=f"""\
{OF_A_JOB}  levelfield study run quickstart.yaml --add-method my_loss.MyLoss
  levelfield study run own_images_quick.yaml --data.dataset.table my_images.csv
  levelfield study run laptop/glyphs --from glyphs.tar.xz --add-method my_loss.MyLoss""",
    settings=(),
    other_names=OF_A_STUDY,
)
STUDY.add(
    "resume",
    "Continues a stopped study with the settings in its folder. It rejects settings that would change a result.",
    FILE + OR_FOLDER + STOP + RUNS + JSON + OUTPUT,
    epilog=f"{OF_A_JOB}  levelfield study resume outputs/own_images_quick",
    settings=(),
    other_names=OF_A_STUDY,
)
STUDY.add(
    "status",
    "Shows finished, running, failed and remaining jobs, and the time left.",
    FILE + OR_ARCHIVE + OUTPUT,
)
STUDY.add(
    "report",
    "Prints the table, and writes results.csv, summary.csv and the page again. An archive needs --output.",
    f"""{FILE}{OR_ARCHIVE}{OUTPUT}
--figures DIR  write the figures as SVG and PDF, for a paper""",
)
STUDY.add(
    "table",
    "Prints the test scores as a table for a paper, with as many digits as the intervals allow.",
    f"""{FILE}{OR_ARCHIVE}{OUTPUT}
--format latex|markdown  latex is the default, with booktabs""",
)
STUDY.add(
    "verify",
    "Computes results.csv and summary.csv again from the stored embeddings. Exits with 2 if a number differs.",
    FILE + OR_ARCHIVE + OUTPUT,
)
STUDY.add(
    "archive",
    "Packs the results and tables of a finished study into one small file, without weights.",
    f"""{FILE}{OR_FOLDER}{OUTPUT}
--to FILE  the archive to write (default: beside the folder of the study)""",
)

# Trainings and their checkpoints.
CONFIG = "\n-c --config FILE *  YAML file; repeatable: later files win, options win over files"
TRUST = "\n--trust NAME *  a module or class of your own that the checkpoint may load (docs/security.md); repeatable"
LEVELFIELD.add(
    "fit",
    "Trains one method on one fold and keeps the best checkpoint.",
    f"""{CONFIG}
--print_config  print the resulting configuration and exit
--resume  continue the newest stopped fit with these settings""",
    epilog=f"""\
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
EVALUATIONS = {
    "validate": "Scores a checkpoint on its validation fold.",
    "test": "Scores a checkpoint on the test classes, and counts the evaluations.",
    "predict": "Embeds any images or texts with a checkpoint; without --data all samples of the checkpoint's data set.",
}
REOPEN = "\n--reopen-test --reopen_test REASON  score the test classes again; the ledger records the reason"
for name, about in EVALUATIONS.items():
    LEVELFIELD.add(
        name,
        f"{about}\nLearner and data come from the checkpoint: the command rejects options that would change them.",
        f"""
--ckpt_path FILE !*  best.ckpt of a fit or of a study's job{TRUST}{CONFIG}{REOPEN if name == "test" else ""}""",
        epilog=f"""\
settings:
  --data.root DIR       where the data set is now; if you moved your own data: --data.dataset.folder or .table
  --data.num_workers N, --data.eval_batch_size N, --trainer.devices N, --trainer.precision P
                        how scores are computed

  levelfield {name} --ckpt_path best.ckpt""",
        settings=(),
        other_names=OF_AN_EVALUATION,
        module="evaluate",
    )
CHECKPOINT = """
--ckpt_path FILE !  best.ckpt of a fit or of a study's job; or the folder of a study's run, which embeds with the
  checkpoints of all folds and concatenates the embeddings"""
# Of commands that need no checkpoint.
ANY_CHECKPOINT = f"""{CHECKPOINT.replace("FILE !", "FILE")}
--trunk FILE  a file of configs/trunk, without a checkpoint: its features (default: efficientnet_lite0; for texts
  minilm)"""
EMBEDS = f"""{TRUST}
--skip-broken  leave out images that cannot be opened, and name them
--device NAME  cpu or cuda (default: a GPU if there is one)"""
USE: dict[str, Any] = {"other_names": OF_A_CHECKPOINT, "module": "use"}
WITH_DATA = "predict --data"  # another command than `predict` on the checkpoint's own data set
LEVELFIELD.add(
    WITH_DATA,
    """\
Embeds any images or texts with a checkpoint, or without one by the features of a pretrained trunk. If the data have
labels, the file has them too, and the ledger of evaluations gets a line, because the file can be scored. Without --data
the command embeds all samples of the checkpoint's own data set into embeddings.safetensors beside the checkpoint, and
takes the options of levelfield validate --help.""",
    f"""{ANY_CHECKPOINT}{EMBEDS}
--data PATH !  {ANY_DATA}, and label if there is one; an image; a {LINES}
--output FILE  .parquet (name, label, embedding) or .safetensors (default: embeddings_<PATH>.parquet beside
  best.ckpt)""",
    epilog="  levelfield predict --ckpt_path best.ckpt --data my_images --output my_images.parquet",
    prog="levelfield predict",
    **USE,
)
LEVELFIELD.add(
    "score",
    """\
Scores a checkpoint on all classes of a labelled data set. To score the test classes of the checkpoint's own data set,
use levelfield test. Each evaluation adds a line to the ledger of evaluations, and to ledger.jsonl beside the
checkpoint.""",
    f"""{CHECKPOINT}{EMBEDS}
--data PATH !  {LABELLED_DATA}; or a name from levelfield data list, in the folder LEVELFIELD_DATA""",
    epilog="  levelfield score --ckpt_path best.ckpt --data my_images",
    **USE,
)
LEVELFIELD.add(
    "search",
    """\
Finds the items of a gallery that are nearest to an image or a text. Without a checkpoint it compares the features of a
pretrained trunk, so it needs no labels and no training. The command embeds the gallery once and keeps the
embeddings in LEVELFIELD_CACHE. If the gallery changes, it embeds only what is new.""",
    f"""
GALLERY  {ANY_DATA}; a {LINES}{ANY_CHECKPOINT}{EMBEDS}
--query WHAT !  an image file, or a text
--top K  number of answers (default: 10)
--output FILE  a sheet of the images (default: answers.png)""",
    epilog="""\
  levelfield search my_images --query photo.jpg
  levelfield search my_images --query my_images/class_0/0.png --ckpt_path best.ckpt
  levelfield search my_texts.csv --query "Where is my card?\"""",
    **USE,
).set_defaults(top=10)
LEVELFIELD.add(
    "export",
    """\
Writes a checkpoint in formats for other programs, and compares each with the learner on ten samples. It fails if an
embedding differs by more than 5e-4. It needs pip install 'levelfield[export]'.

  embed.pt2, embed.onnx            torch.export and ONNX: from an image crop or tokens to the embedding
  tokenizer.json                   from a text to its tokens
  trunk.safetensors                the trunk, for timm
  embedder.safetensors, adapter/   the embedder; the adapter, for peft
  export.json, README.md           sizes and interpolation of crops; a model card""",
    f"""{CHECKPOINT}{TRUST}
--data PATH  the ten samples, as for levelfield predict (default: random images, or ten sentences)
--output DIR !  a new folder""",
    epilog="  levelfield export --ckpt_path best.ckpt --output exported",
    **USE,
)

# Data sets.
DATA = LEVELFIELD.add(
    "data",
    "Lists, checks and downloads the data sets that levelfield knows by name.",
    epilog="""\
  levelfield data list
  levelfield data prepare cub200 --root DIR

Your own data need no name: levelfield compare my_images""",
).group()
ROOT = "\n--root --data.root DIR  the folder with the data sets (default: LEVELFIELD_DATA)"
DATA.add(
    "list",
    "Shows classes, samples, whether a data set is ready, split, licence and source. With NAME: one card each.",
    f"""
NAME *  names of data sets{ROOT}""",
    epilog="  levelfield data list --root DIR\n  levelfield data list omniglot",
)
DATA.add(
    "verify",
    """\
Compares the counts with the published ones and opens every sample (test classes too). It hashes all files again.
Lists problems and duplicates. Exits with 2 if there are problems.""",
    f"""
NAME *  names of data sets, or your own tables (.csv, .parquet) and folders of class folders{ROOT}""",
    epilog="  levelfield data verify omniglot --root DIR\n  levelfield data verify my_images.csv",
)
DATA.add(
    "prepare",
    "Downloads, checks and unpacks the files of a data set. The same command starts a stopped download again.",
    f"""
NAME +  names of data sets (levelfield data list shows them){ROOT}
--archive FILE *  a file that you have downloaded yourself; repeatable""",
    epilog="  levelfield data prepare cub200 --root DIR",
)
LEVELFIELD.add(
    "init",
    """\
Writes a small project of your own into a new folder. levelfield is a dependency of it. The files are a loss, its test,
a training script with plain Lightning, a study, a notebook, a W&B sweep and a workflow.""",
    "NAME  the name of its Python package",
    epilog="  levelfield init my_project",
)


def read(name: str, words: Sequence[str]) -> Namespace:
    """The options of a command, with `module`, which runs it, its `words`, and `debug`.

    Raises:
        SystemExit: the help was requested, and is printed.
        UserError: a mistake in the options.
    """
    kept = [word for word in words if word != "--debug"]
    embeds = name == "predict" and {word.partition("=")[0] for word in words} & {"--data", "-h", "--help"}
    given = LEVELFIELD.read([WITH_DATA if embeds else name, *kept])
    given.words, given.debug = [name, *kept], len(kept) < len(words)
    return given
