"""`levelfield study run|resume|status|report|verify|archive`."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from levelfield.cli.options import Options, dotted
from levelfield.cli.study_output import answer
from levelfield.study.spec import COUNTS

HELP = """\
usage: levelfield study COMMAND FILE [--KEY VALUE ...]

Compare methods under equal conditions: every method's arguments are searched on the validation folds (if the study
says so), then it is trained on each fold in each run, then all checkpoints are scored on the test classes, once, beside
the pretrained trunk without training. A study can be stopped at any moment and goes on where it stopped.

  run       train, test and print the table
  resume    go on with a study that was stopped, with the settings that it was begun with
  status    show jobs done, running, failed and to do, and the time left
  report    print the table again, write its files and the page anew
  verify    compute the tables again from the stored embeddings and compare
  archive   put a finished study's results and tables into one small file, beside its folder or --to FILE

FILE is a study file; a bare name is sought in configs/study/. All but run take a study's folder too, status, report and
verify an archive (report unpacks it into --output).

  --output DIR              study folder (default: outputs/<study>)
  --add-method METHOD       (run) compare one more, in the study's folder: a loss of the working directory or of any
                            package (my_loss.MyLoss), a method of configs/method (ntxent_koleo) or a file
                            (my_method.yaml); repeatable
  --figures DIR             (report) write the figures as SVG and PDF, for a paper
  --with DIR ...            (report) rank the methods over this study and those of these output folders
  --from ARCHIVE            (run) begin with the results of an archive of the same study
  --json                    (status, run, resume) lines of JSON for machines on standard output
  run and resume:
  --config FILE             settings of `levelfield fit` laid over all methods: logger/wandb.yaml; repeatable
  --recompute METHOD        compute again what a changed source or setting has made stale; `all`; repeatable
  --keep METHOD             keep results though a source of theirs has changed; reports say so; repeatable
  --reopen-test WHY         score the runs on the test classes once more; the reason is kept and shown
  --test-without-failed-runs
                            score the other runs though some failed
  --stop-here               train nothing more, and score the runs that are whole on the test classes
  --dry-run                 print the jobs; train nothing
  --metrics NAME ...        test scores beside MAP@R, R-precision and P@1, in results.csv and summary.csv: recall_at_16,
                            map_at_1024, map, mrr, nmi, nmi_geometric, ami, f1, or your own function of
                            embeddings and labels, my_metric.hubness (docs/metrics.md)
  --selected_by NAME        the validation score that chooses each training's best epoch and the search's best trial,
                            the largest is best (default: map_at_r): my_metric.hubness
  --executor NAME           where jobs run: local (default), with its --executor.workers N, which take the GPUs in turn
                            (--executor.devices [0,1]), as many as cores if a job has one thread; or ray, on the nodes
                            of a cluster (docs/execution.md)

Any setting of `levelfield fit` can be given for all jobs (--data.root DIR, --trainer.max_epochs 2), and the study's
own: --folds (1: all classes train), --runs, --seed, --threads, --search.trials N, --search.folds N,
--search.sampler gp|tpe|random, --search.batch N, --second_searches.all N.

  levelfield study run quickstart.yaml
  levelfield study run quickstart.yaml --add-method my_loss.MyLoss
  levelfield study run own_images_quick.yaml --data.dataset.table my_images.csv
  levelfield study resume outputs/own_images_quick
  levelfield study run laptop/glyphs --from glyphs.tar.xz --add-method my_loss.MyLoss
"""

COMMANDS = ("run", "resume", "status", "report", "verify", "archive")
TRAINING = ("run", "resume")


def study_options() -> Options:
    """The options of `levelfield study`, and with more of them those of a command that runs one."""
    options = Options(HELP, COMMANDS, settings=(), settings_used_by=TRAINING)
    options.add_argument("file", metavar="FILE")
    options.add_argument("--output", type=Path)
    options.add_argument("--debug", action="store_true")
    options.add_option("--add-method", used_by=("run",), action="append", default=[])
    options.add_option("--figures", used_by=("report",), type=Path)
    options.add_option("--with", used_by=("report",), dest="others", nargs="+", type=Path, default=[])
    options.add_option("--to", used_by=("archive",), type=Path)
    options.add_option("--from", used_by=("run",), dest="archive", type=Path)
    for repeated in ("--config", "--recompute", "--keep"):
        options.add_option(repeated, used_by=TRAINING, action="append", default=[])
    options.add_option("--reopen-test", used_by=TRAINING)
    options.add_option("--json", used_by=("status", *TRAINING), action="store_true")
    for flag in ("--test-without-failed-runs", "--stop-here", "--dry-run"):
        options.add_option(flag, used_by=TRAINING, action="store_true")
    options.add_option("--executor", used_by=TRAINING, default="local")
    options.add_option("--metrics", used_by=TRAINING, nargs="+")
    options.add_option("--selected_by", used_by=TRAINING)
    for count in COUNTS:
        options.add_option(f"--{count}", used_by=TRAINING, type=int)
    return options


def parse(argv: Sequence[str], options: Options | None = None) -> Namespace:
    """What the words of `levelfield study` ask for.

    `overrides` has each setting that is laid over all methods, `options` those of the executor.

    Args:
        options: Those of `study_options`, or with more of them.

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

    Ctrl-C prints how to go on and returns 130.

    Raises:
        UserError: A mistake; the command line prints it and exits with 2.
    """
    return answer(parse(argv))
