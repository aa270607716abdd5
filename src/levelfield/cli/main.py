"""The one command line: fit; validate, test, predict; score, search, export; compare; study; data."""

import os
import sys
import traceback
from importlib import import_module

from levelfield import __version__
from levelfield.cli.fit_help import fit_help
from levelfield.errors import UserError, nearest, refused_file
from levelfield.runtime.freed_memory import keep_freed_memory
from levelfield.runtime.imports import quick_imports
from levelfield.runtime.own_modules import find_own_modules
from levelfield.runtime.processes import FIRST, end_with_first
from levelfield.runtime.signals import EXIT_CODE, StopAtOnce, Stopped, handling, is_first_rank, requeue

HELP = f"""\
levelfield {__version__}: compares deep metric learning methods on a level playing field

usage: levelfield COMMAND [OPTIONS]

  compare PATH        which embedding suits your images or texts, in N minutes        (compare --help)
  study run FILE      compare methods: folds, runs, the test classes once, a table   (study --help)
  fit                 train one method on one fold                                   (fit --help)
  validate, test      score a checkpoint: --ckpt_path best.ckpt                      (validate --help)
  predict, score      embed any data with it, or score another set: --data PATH      (predict --help)
  search, export      find the nearest in a gallery; ONNX and torch.export           (search --help)
  data list           the data sets, and whether they are there                      (data --help)

first steps
  levelfield study run configs/study/quickstart.yaml
  levelfield fit --config configs/data/glyphs.yaml --model.loss ArcFaceLoss --model.loss.margin 20

  --debug             shows the traceback of an error
  --version           prints the version
"""

EVALUATIONS = ("validate", "test", "predict")
USES = ("score", "search", "export")
COMMANDS = ("fit", *EVALUATIONS, *USES, "compare", "study", "data")
EVALUATION_HELP = """\
usage: levelfield {} --ckpt_path FILE [--KEY VALUE ...]

Learner and data are read from the checkpoint, and options that would change them are refused.

  --ckpt_path FILE     the best.ckpt of a fit or of a study's job
  --trust NAME         a module or class of your own, or of a library we do not know, that the checkpoint may use;
                       may be given several times (docs/security.md)
  --data.root DIR      where the data set lies now; --data.dataset.table or .folder where it was moved
  --data.num_workers N, --trainer.devices N, --trainer.precision P
                       and whatever else changes how it is computed, not what
  --reopen-test WHY    (test) why the test classes are evaluated again; the ledger keeps it
  --hierarchy          (test) also how many of the nearest are at least of the same coarse class, where a set has such
  --open-set           (test) also whether one threshold tells pairs of one class from others: TAR at FAR, EER, AUROC
  --rerank WAY         (test) also the scores after ranking anew: k_reciprocal, with settings as in
                       k_reciprocal:k1=10,k2=4 (docs/metrics.md); several times

validate scores the checkpoint's validation fold. test scores the test classes, and prints how many evaluations on them
there have been. predict writes embeddings.safetensors beside the checkpoint.
"""


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns its exit code: 0, 2 for a mistake in the input, 130 after Ctrl-C, 75 after a signal."""
    args = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in args
    if args[:1] not in (["study"], ["compare"]):  # these show the traceback of an own loss and go on
        args = [word for word in args if word != "--debug"]
    if not args or args[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0
    if args[0] == "--version":
        print(__version__)
        return 0
    stop_at_once = StopAtOnce()
    try:
        with handling(stop_at_once):
            return _run(args[0], args[1:])
    except Stopped as stop:
        return _stopped(stop)
    except KeyboardInterrupt as stop:
        print(f"\nstopped{f'; {stop}' if str(stop) else ''}", file=sys.stderr)
        return 130
    except Exception as error:
        if stop_at_once.number:  # the first process has left the group before this one
            return _stopped(Stopped(stop_at_once.number))
        if debug or not _is_users(error):
            traceback.print_exc()
            return 2 if _is_users(error) else 1
        print(f"levelfield: {_one_line(error)}", file=sys.stderr)
        return 2


def _run(name: str, words: list[str]) -> int:
    if name not in COMMANDS:
        raise UserError(f"no such command '{name}'{nearest(name, COMMANDS, '')} (levelfield --help lists them)")
    find_own_modules()
    options = {word.partition("=")[0] for word in words}
    if name in USES or (name == "predict" and options & {"--data", "-h", "--help"}):
        name, words = "use", [name, *words]
    if name in ("fit", *EVALUATIONS) and options & {"-h", "--help"}:
        print(fit_help() if name == "fit" else EVALUATION_HELP.format(name), end="")  # without torch
        return 0
    if name in ("fit", *EVALUATIONS):
        end_with_first()
    if name in EVALUATIONS:
        name, words = "evaluate", [name, *words]
    keep_freed_memory()
    with quick_imports():
        command = import_module(f"levelfield.cli.{name}")
    return int(command.main(words))


def _stopped(stop: Stopped) -> int:
    """Says how to go on, and lets SLURM do it."""
    if os.environ.get("LOCAL_RANK", "0") != "0" and FIRST in os.environ:
        return 0  # a process that the fit started itself: Lightning kills the fit if one fails
    if is_first_rank():
        print("; ".join(["levelfield: " + str(stop), *filter(None, [requeue(stop) or stop.remedy])]), file=sys.stderr)
    return EXIT_CODE


def _is_users(error: Exception) -> bool:
    if isinstance(error, OSError):
        return refused_file(error) is not None
    if isinstance(error, UserError):
        return True
    from lightning.fabric.utilities.exceptions import MisconfigurationException  # takes seconds

    return isinstance(error, MisconfigurationException)


def _one_line(error: Exception) -> str:
    """The message; of an error that crossed from a loader process, only what it said there."""
    if isinstance(error, OSError):
        error = refused_file(error) or error
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    if "Original Traceback" in str(error):
        return lines[-1].partition(": ")[2]
    return " ".join(lines)
