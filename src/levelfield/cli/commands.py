"""All commands: the text of each is its help, and declares its options. Needs no torch.

The paragraphs of a text: what the command does, its options, and more. The first sentence is the command's line in the
help of its group. The text of a group has no options.

An option is written as `--top K  number of answers`. `--resume` has no value, `PATH` is a value without option. A line
that begins with spaces continues the line before. After a value: `!` is required, `*` may be repeated, `+` too, with
several at once.
"""

from pathlib import Path

from levelfield import __version__
from levelfield.core import option_hints as hints
from levelfield.study.rows import OWN

# Values and options of several commands.
ANY_DATA = "a folder of images; a table (.csv, .parquet) with the column path or text"
LABELLED_DATA = "a folder of class folders, or a table (.csv, .parquet) with the columns path,label or text,label"
LINES = ".txt file with one text per line"
FILE = "FILE  a study file: a path, or a name in configs/study"
OR_FOLDER = "; or the study's folder"
OR_ARCHIVE = "; or its folder, or an archive of it"
CONFIG = "-c --config FILE *  YAML file; repeatable: later files win, options win over files"
TRUST = "--trust NAME *  a module or class of your own that the checkpoint may load (docs/security.md); repeatable"
ROOT = "--root --data.root DIR  the folder with the data sets (default: LEVELFIELD_DATA)"
OUTPUT = "--output DIR  folder of the study (default: outputs/<name of the study>)"
ADD_METHOD = """\
--add-method METHOD *  add a method: a loss (ArcFaceLoss, your own my_loss.MyLoss), a file of configs/method
  (ntxent_koleo) or your own file (my_method.yaml); repeatable"""
TO_RUN = """\
--stop-here  stop training, and score the complete runs on the test classes
--dry-run  print the jobs and train nothing
--config FILE *  settings of levelfield fit for all methods, e.g. logger/wandb.yaml; repeatable
--recompute METHOD *  compute the results of a method again after its code or settings changed; `all` for all
--reopen-test REASON  score on the test classes again; the reason is recorded and shown
--metrics NAME +  more test scores than MAP@R, R-precision and P@1: recall_at_16, map_at_1024, map, mrr, nmi,
  nmi_geometric, ami, f1, or your own function my_metric.hubness (docs/metrics.md)
--executor NAME  where jobs run: local (default), or ray, on the nodes of a cluster (docs/ray_and_slurm.md)
--json  end with a line of JSON on standard output: the decision of compare, and all scores"""
OF_A_JOB = """\
settings:
  --runs N, --folds N, --seed N, --threads N, --searches N, --replicates N, --selected_by SCORE, --compare METHOD
                        keys of a study file (docs/study_files.md)
  --executor.workers N  parallel jobs (default: as many as cores, memory and GPUs allow)
                        (CUDA_VISIBLE_DEVICES=0,1 names the GPUs that they take in turn)
  --search.trials N     settings to try for each method before its runs; also --search.folds N, --search.batch N,
                        --search.sampler gp|tpe|random
  --SECTION.KEY VALUE   any setting of levelfield fit, for all methods: --data.root DIR, --trainer.max_epochs 2
"""
CHECKPOINT = """\
--ckpt_path FILE !  best.ckpt of a fit or of a study's job; or the folder of a study's run, which embeds with the
  checkpoints of all folds and concatenates the embeddings"""
# Of commands that need no checkpoint.
ANY_CHECKPOINT = f"""\
{CHECKPOINT.replace("FILE !", "FILE")}
--trunk FILE  a file of configs/trunk, without a checkpoint: its features (default: efficientnet_lite0; for texts
  minilm)"""
EMBEDS = f"""\
{TRUST}
--skip-broken  leave out images that cannot be opened, and name them
--device NAME  cpu or cuda (default: a GPU if there is one)"""
REOPEN = "\n--reopen-test --reopen_test REASON  score the test classes again; the ledger records the reason"
EVALUATIONS = {
    "validate": "Scores a checkpoint on its validation fold.",
    "test": "Scores a checkpoint on the test classes, and counts the evaluations.",
    "predict": "Embeds any images or texts with a checkpoint; without --data all samples of the checkpoint's data set.",
}
MINUTES = 30.0  # of `compare`
WITH_DATA = "predict --data"  # another command than `predict` on the checkpoint's own data set
TEXTS = {
    "": f"""\
levelfield {__version__}: compare deep metric learning methods under equal conditions

levelfield COMMAND --help shows the options of a command, --debug the traceback of an error, --version the version.
  levelfield study run configs/study/quickstart.yaml
  levelfield fit --config configs/data/glyphs.yaml --model.loss ArcFaceLoss --model.loss.margin 20""",
    "compare": f"""\
Finds the best embedding for your data, and whether training pays. It compares the features of a pretrained trunk,
their PCA and whitening, a linear layer trained on the frozen trunk, and the whole trunk trained with two losses, with
and without averaging its weights with the pretrained ones. One random half of the classes trains and validates, the
other is tested once, at the end. Validation selects the method: the features, unless another row is clearly above
them. The last lines are the command to use it. The same command continues a stopped comparison.

PATH  {LABELLED_DATA}; at least 8 classes
--minutes MINUTES  training time on this machine (default: {MINUTES:g}); more allows more folds, sizes and steps
--trunk FILE +  the trunk to use (configs/trunk/convnext_tiny.yaml); of several, the one with the best features
--skip-broken  leave out images that cannot be opened (default: stop)
--cheapest  of the rows clearly above the features, use the cheapest that is about as good as the best
{ADD_METHOD}
{TO_RUN}
{OUTPUT}

settings: --executor.workers N (default: one per core), and those of the data: --data.transforms.crop_size 96

  levelfield compare my_texts.csv --minutes 10
  levelfield compare my_images --trunk configs/trunk/convnext_tiny.yaml configs/trunk/efficientnet_lite0.yaml

To compare 14 losses: levelfield study run own_images_quick.yaml --data.dataset.table FILE""",
    "study": """\
Compares methods under equal conditions. For each method it searches the arguments on the validation folds (if the
study file asks for it), trains on each fold in each run, then scores all checkpoints once on the test classes. It
scores the untrained trunk too. You can stop a study at any time: the same command continues it.

  levelfield study run quickstart.yaml --add-method my_loss.MyLoss
  levelfield study status quickstart.yaml
  levelfield study report outputs/quickstart --figures figures""",
    "study run": f"""\
Trains the methods of a study file, scores them once on the test classes and prints the table. The same command
continues a stopped study.

{FILE}
{ADD_METHOD}
--from ARCHIVE  begin with the results in an archive of the same study (of replicates: DIR, with NUMBER/archive.tar.xz)
{TO_RUN}
{OUTPUT}

{OF_A_JOB}
  levelfield study run own_images_quick.yaml --data.dataset.table my_images.csv
  levelfield study run laptop/glyphs --from glyphs.tar.xz --add-method my_loss.MyLoss""",
    "study resume": f"""\
Continues a stopped study with the settings in its folder. It rejects settings that would change a result.

{FILE}{OR_FOLDER}
{TO_RUN}
{OUTPUT}

{OF_A_JOB}""",
    "study status": f"""\
Shows finished, running, failed and remaining jobs, and the time left.

{FILE}{OR_ARCHIVE}
{OUTPUT}""",
    "study report": f"""\
Prints the table, and writes results.csv, summary.csv and the page again. An archive needs --output.

{FILE}{OR_ARCHIVE}
{OUTPUT}
--figures DIR  write the figures as SVG and PDF, and the table as LaTeX and Markdown, for a paper""",
    "study verify": f"""\
Computes results.csv and summary.csv again from the stored embeddings. Exits with 2 if a number differs.

{FILE}{OR_ARCHIVE}
{OUTPUT}""",
    "study archive": f"""\
Packs the results and tables of a finished study into one small file beside its folder, without weights.

{FILE}{OR_FOLDER}
{OUTPUT}""",
    "fit": f"""\
Trains one method on one fold and keeps the best checkpoint.

{CONFIG}
--print_config  print the resulting configuration, with all settings and their defaults, and exit
--resume  continue the newest stopped fit with these settings

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
           --trainer.callbacks+ GradientCaching --trainer.callbacks.chunk_size 64   batches that exceed memory""",
    **{
        name: f"""\
{about}
Learner and data come from the checkpoint: the command rejects options that would change them.

--ckpt_path FILE !*  best.ckpt of a fit or of a study's job
{TRUST}
{CONFIG}{REOPEN if name == "test" else ""}

settings:
  --data.root DIR  where the data set is now; if you moved your own data: --data.dataset.folder or .table
  --data.num_workers, --data.eval_batch_size, --trainer.devices, --trainer.precision  how scores are computed"""
        for name, about in EVALUATIONS.items()
    },
    WITH_DATA: f"""\
Embeds any images or texts with a checkpoint, or without one by the features of a pretrained trunk. If the data have
labels, the file has them too, and the ledger of evaluations gets a line, because the file can be scored. Without --data
the command embeds all samples of the checkpoint's own data set into embeddings.safetensors beside the checkpoint, and
takes the options of levelfield validate --help.

{ANY_CHECKPOINT}
{EMBEDS}
--data PATH !  {ANY_DATA}, and label if there is one; an image; a {LINES}
--output FILE  .parquet (name, label, embedding) or .safetensors (default: embeddings_<PATH>.parquet beside
  best.ckpt)""",
    "score": f"""\
Scores a checkpoint on all classes of a labelled data set. To score the test classes of the checkpoint's own data set,
use levelfield test. Each evaluation adds a line to the ledger of evaluations, and to ledger.jsonl beside the
checkpoint.

{CHECKPOINT}
{EMBEDS}
--data PATH !  {LABELLED_DATA}; or a name from levelfield data list, in the folder LEVELFIELD_DATA""",
    "search": f"""\
Finds the items of a gallery that are nearest to an image or a text. Without a checkpoint it compares the features of a
pretrained trunk, so it needs no labels and no training. The command embeds the gallery once and keeps the
embeddings in LEVELFIELD_CACHE. If the gallery changes, it embeds only what is new.

GALLERY  {ANY_DATA}; a {LINES}
{ANY_CHECKPOINT}
{EMBEDS}
--query WHAT !  an image file, or a text
--top K  number of answers (default: 10)
--output FILE  a sheet of the images (default: answers.png)

  levelfield search my_images --query photo.jpg
  levelfield search my_texts.csv --query "Where is my card?\"""",
    "export": f"""\
Writes a checkpoint in formats for other programs, and compares each with the learner on ten samples. It fails if an
embedding differs by more than 5e-4. It needs pip install 'levelfield[export]'.

{CHECKPOINT}
{TRUST}
--data PATH  the ten samples, as for levelfield predict (default: random images, or ten sentences)
--output DIR !  a new folder

  embed.pt2, embed.onnx            torch.export and ONNX: from an image crop or tokens to the embedding
  tokenizer.json                   from a text to its tokens
  trunk.safetensors                the trunk, for timm
  embedder.safetensors, adapter/   the embedder; the adapter, for peft
  export.json, README.md           sizes and interpolation of crops; a model card""",
    "data": """\
Lists, checks and downloads the data sets that levelfield knows by name.

  levelfield data list
  levelfield data prepare cub200 --root DIR

Your own data need no name: levelfield compare my_images""",
    "data list": f"""\
Shows classes, samples, whether a data set is ready, split and source. With NAME: one card each, with licence and files.

NAME *  names of data sets
{ROOT}""",
    "data verify": f"""\
Compares the counts with the published ones and opens every sample (test classes too). It hashes all files again.
Lists problems and duplicates. Exits with 2 if there are problems.

NAME *  names of data sets, or your own tables (.csv, .parquet) and folders of class folders
{ROOT}""",
    "data prepare": f"""\
Downloads, checks and unpacks the files of a data set. The same command starts a stopped download again.

NAME +  names of data sets (levelfield data list shows them)
{ROOT}
--archive FILE *  a file that you have downloaded yourself; repeatable""",
    "init": """\
Writes a small project of your own into a new folder. levelfield is a dependency of it. The files are a loss, its test,
a training script with plain Lightning, a study, a notebook, a W&B sweep and a workflow.

NAME  the name of its Python package""",
}
# Options without a dot that are settings of a training. Other commands take no settings at all, not even dotted ones.
SETTINGS = {
    "fit": ("seed_everything", "name", "output", "checkpoint_seconds", "ckpt_path"),
    **dict.fromkeys(("study run", "study resume"), OWN),
    **dict.fromkeys(("compare", *EVALUATIONS), ()),
}
# The module that runs a command, if it is not named as its first word.
MODULES = {
    **dict.fromkeys(EVALUATIONS, "evaluate"),
    **dict.fromkeys((WITH_DATA, "score", "search", "export"), "use"),
}
# Names in other programs, by module.
HINTS = {
    **{"": hints.COMMANDS, "fit": hints.OF_TRAINING, "compare": hints.OF_COMPARE, "study": hints.OF_A_STUDY},
    **{"evaluate": hints.OF_AN_EVALUATION, "use": hints.OF_A_CHECKPOINT},
}
