"""`levelfield study run|resume|status|report|verify|archive`."""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from levelfield.cli.options import Options, dotted
from levelfield.cli.study_output import answer
from levelfield.core.option_hints import OF_A_STUDY
from levelfield.study.spec import COUNTS

SETTINGS_HELP = """\
  --executor.workers N  parallel jobs (default: as many as cores, memory and GPUs allow)
  --executor.devices    the GPUs that the workers take in turn: [0,1]
  --search.trials N     settings to try for each method before its runs; also --search.folds N, --search.batch N,
                        --search.sampler gp|tpe|random, --second_searches.all N
  --SECTION.KEY VALUE   any setting of levelfield fit, for all methods: --data.root DIR, --trainer.max_epochs 2
"""
PAGES = {
    "": """\
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
""",
    "run": f"""\
usage: levelfield study run FILE [--KEY VALUE ...]

Trains the methods of a study file, scores them once on the test classes and prints the table. The same command
continues a stopped study.

{{options}}
{SETTINGS_HELP}
  levelfield study run quickstart.yaml --add-method my_loss.MyLoss
  levelfield study run own_images_quick.yaml --data.dataset.table my_images.csv
  levelfield study run laptop/glyphs --from glyphs.tar.xz --add-method my_loss.MyLoss
""",
    "resume": f"""\
usage: levelfield study resume FILE_OR_FOLDER [--KEY VALUE ...]

Continues a stopped study with the settings in its folder. It rejects settings that would change a result.

{{options}}
{SETTINGS_HELP}
  levelfield study resume outputs/own_images_quick
""",
    "status": """\
usage: levelfield study status FILE_OR_FOLDER_OR_ARCHIVE

Shows finished, running, failed and remaining jobs, and the time left.

{options}

  levelfield study status outputs/quickstart
""",
    "report": """\
usage: levelfield study report FILE_OR_FOLDER_OR_ARCHIVE

Prints the table, and writes results.csv, summary.csv and the page again. An archive needs --output.

{options}

  levelfield study report outputs/quickstart --figures figures
""",
    "verify": """\
usage: levelfield study verify FILE_OR_FOLDER_OR_ARCHIVE

Computes results.csv and summary.csv again from the stored embeddings. Exits with 2 if a number differs.

{options}

  levelfield study verify outputs/quickstart
""",
    "archive": """\
usage: levelfield study archive FILE_OR_FOLDER

Packs the results and tables of a finished study into one small file, without weights.

{options}

  levelfield study archive outputs/quickstart --to quickstart.tar.xz
""",
}

COUNTED = {
    "folds": "class folds, each validated once; 1 trains on all training classes and validates nothing",
    "runs": "repetitions with new seeds",
    "seed": "the seed that the seeds of all jobs follow from",
    "threads": "CPU threads of a job; another number gives slightly different weights",
}
COMMANDS = ("run", "resume", "status", "report", "verify", "archive")
TRAINING = ("run", "resume")


def study_options(pages: Mapping[str, str] = PAGES, other_names: Mapping[str, str] = OF_A_STUDY) -> Options:
    """The options of `levelfield study`; another command that runs a study adds its own."""
    options = Options(pages, COMMANDS, settings=(), settings_used_by=TRAINING, other_names=other_names)
    options.add_argument("file", metavar="FILE")
    options.add_argument("--debug", action="store_true")
    options.add_argument(
        "--output", type=Path, metavar="DIR", help="folder of the study (default: outputs/<name of the study>)"
    )
    options.add_option(
        "--add-method",
        used_by=("run",),
        action="append",
        default=[],
        metavar="METHOD",
        help="add a method: a loss of your own or of any package (my_loss.MyLoss), a file of configs/method "
        "(ntxent_koleo) or your own file (my_method.yaml); repeatable",
    )
    options.add_option(
        "--from",
        used_by=("run",),
        dest="archive",
        type=Path,
        metavar="ARCHIVE",
        help="begin with the results in an archive of the same study",
    )
    options.add_option(
        "--figures", used_by=("report",), type=Path, metavar="DIR", help="write the figures as SVG and PDF, for a paper"
    )
    options.add_option(
        "--with",
        used_by=("report",),
        dest="others",
        nargs="+",
        type=Path,
        default=[],
        metavar="DIR ...",
        help="print the ranks of the methods over this study and the studies in these folders",
    )
    options.add_option(
        "--to",
        used_by=("archive",),
        type=Path,
        metavar="FILE",
        help="the archive to write (default: beside the folder of the study)",
    )
    options.add_option(
        "--config",
        used_by=TRAINING,
        action="append",
        default=[],
        metavar="FILE",
        help="settings of levelfield fit for all methods, e.g. logger/wandb.yaml; repeatable",
    )
    options.add_option(
        "--recompute",
        used_by=TRAINING,
        action="append",
        default=[],
        metavar="METHOD",
        help="compute the results of a method again after its code or settings changed; `all` for all; repeatable",
    )
    options.add_option(
        "--keep",
        used_by=TRAINING,
        action="append",
        default=[],
        metavar="METHOD",
        help="keep the results of a method although its code changed; the report says so; repeatable",
    )
    options.add_option(
        "--reopen-test",
        used_by=TRAINING,
        metavar="REASON",
        help="score on the test classes again; the reason is recorded and shown",
    )
    options.add_option(
        "--test-without-failed-runs",
        used_by=TRAINING,
        action="store_true",
        help="score the other runs although some failed",
    )
    options.add_option(
        "--stop-here",
        used_by=TRAINING,
        action="store_true",
        help="stop training, and score the complete runs on the test classes",
    )
    options.add_option("--dry-run", used_by=TRAINING, action="store_true", help="print the jobs and train nothing")
    options.add_option(
        "--json", used_by=("status", *TRAINING), action="store_true", help="print lines of JSON on standard output"
    )
    options.add_option(
        "--metrics",
        used_by=TRAINING,
        nargs="+",
        metavar="NAME ...",
        help="more test scores than MAP@R, R-precision and P@1: recall_at_16, map_at_1024, map, mrr, nmi, "
        "nmi_geometric, ami, f1, or your own function my_metric.hubness (docs/metrics.md)",
    )
    options.add_option(
        "--selected_by",
        used_by=TRAINING,
        metavar="NAME",
        help="the validation score that selects epochs and trials; the largest wins (default: map_at_r)",
    )
    for count, said in COUNTED.items():
        options.add_option(f"--{count}", used_by=TRAINING, type=int, metavar="N", help=said)
    options.add_option(
        "--executor",
        used_by=TRAINING,
        default="local",
        metavar="NAME",
        help="where jobs run: local (default), or ray, on the nodes of a cluster (docs/ray_and_slurm.md)",
    )
    return options


def parse(argv: Sequence[str], options: Options | None = None) -> Namespace:
    """The options of `levelfield study`: `overrides` has the settings for all methods, `options` the executor's.

    Args:
        options: Those of `study_options`, perhaps with more.

    Raises:
        UserError: A misspelt command or option, or a value that is not accepted.
    """
    given = (options or study_options()).read(argv or ["--help"])
    own = {key: value for key in (*COUNTS, "metrics", "selected_by") if (value := getattr(given, key)) is not None}
    asked = {**own, **dotted(given.config, given.settings)}
    given.options = {key[9:]: asked.pop(key) for key in list(asked) if key.startswith("executor.")}
    given.overrides = asked
    given.words = list(argv)
    return given


def main(argv: Sequence[str]) -> int:
    """Run `levelfield study` with `argv` (what follows `study`) and return the exit code.

    Ctrl-C prints how to continue and returns 130.

    Raises:
        UserError: A mistake; the command line prints it and exits with 2.
    """
    return answer(parse(argv))
