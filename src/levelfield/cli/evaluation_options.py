"""The options of `levelfield validate`, `test` and `predict`. Needs no torch."""

from levelfield.cli.options import Options
from levelfield.core.option_hints import OF_AN_EVALUATION

COMMANDS = ("validate", "test", "predict")
TRUST = "a module or class of your own that the checkpoint may load (docs/security.md); repeatable"
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
    options.add_argument("-c", "--config", action="append", default=[])
    options.add_argument("--print_config", action="store_true", help="print the configuration and exit")
    return options
