"""The options of `levelfield validate`, `test` and `predict`. Needs no torch."""

from collections.abc import Sequence

from levelfield.cli.options import Options
from levelfield.core.other_names import OF_AN_EVALUATION

COMMANDS = ("validate", "test", "predict")
TRUST = "a module or class of your own that the checkpoint may load (docs/security.md); repeatable"
RERANK = "also rank again: k_reciprocal, or with settings k_reciprocal:k1=10,k2=4 (docs/metrics.md); repeatable"
PAGE = """\
usage: levelfield {command} --ckpt_path FILE [--KEY VALUE ...]

{what}
Learner and data come from the checkpoint: the command rejects options that would change them.

{{options}}
  --data.root DIR       where the data set is now; if you moved your own data: --data.dataset.folder or .table
  --data.num_workers N, --data.eval_batch_size N, --trainer.devices N, --trainer.precision P
                        how scores are computed

  levelfield {command} --ckpt_path best.ckpt
"""
PAGES = {
    "validate": PAGE.format(command="validate", what="Scores a checkpoint on its validation fold."),
    "test": PAGE.format(command="test", what="Scores a checkpoint on the test classes, and counts the evaluations."),
}


def evaluation_options() -> Options:
    """The options of the three commands."""
    options = Options(PAGES, COMMANDS, settings=(), other_names=OF_AN_EVALUATION)
    options.add_argument(
        "--ckpt_path", action="append", default=[], metavar="FILE", help="best.ckpt of a fit or of a study's job"
    )
    options.add_argument("--trust", action="append", default=[], metavar="NAME", help=TRUST)
    options.add_option(
        "--reopen-test",
        "--reopen_test",
        used_by=("test",),
        metavar="REASON",
        help="score the test classes again; the ledger records the reason",
    )
    add_further_scores(options, used_by=("test",))
    options.add_option("--rerank", used_by=("test",), action="append", default=[], metavar="METHOD", help=RERANK)
    options.add_argument("-c", "--config", action="append", default=[])
    options.add_argument("--print_config", action="store_true", help="print the configuration and exit")
    return options


def add_further_scores(options: Options, used_by: Sequence[str]) -> None:
    """Add the options for scores other than retrieval."""
    options.add_option(
        "--hierarchy",
        used_by=used_by,
        action="store_true",
        help="also count how many of the nearest have the same coarse class, if the data set has coarse classes",
    )
    options.add_option(
        "--open-set",
        "--open_set",
        used_by=used_by,
        action="store_true",
        help="also score one threshold that separates pairs of one class from other pairs: TAR at FAR, EER, AUROC",
    )
