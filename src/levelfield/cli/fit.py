"""`levelfield fit`: one training in its own folder; `--resume` continues it."""

import argparse
import shlex
from functools import partial
from pathlib import Path
from typing import Any, Self

from jsonargparse import Namespace
from lightning.pytorch import Trainer

from levelfield.cli.options import configuration
from levelfield.core.errors import UserError
from levelfield.core.processes import is_first_rank, launched_nodes, launched_together
from levelfield.core.source_identity import sources
from levelfield.core.terminal import say
from levelfield.metrics.definitions import title_of
from levelfield.models.trunks import Trunk
from levelfield.training.build import Training
from levelfield.training.callbacks.until_done import BEFORE_TRAINING
from levelfield.training.initial_weights import start_from_checkpoint
from levelfield.training.run_folder import BEST, LAST, LastEpoch, RunFolder, claim, interruptible
from levelfield.training.settings import plain
from levelfield.training.trust import user_packages

# How errors of Lightning and torch begin that an option causes.
MISTAKES = {
    "Early stopping conditioned on metric": "--trainer.callbacks",
    "`val_check_interval`": "--trainer.val_check_interval",
    "Tried to step": "--model.lr_scheduler",
    "SparseAdam does not support": "--model.optimizer",
}


def main(given: argparse.Namespace) -> int:
    """Run `levelfield fit` and return the exit code."""
    for key in {key for key, _ in given.settings} & {"model.seed", "data.seed"}:  # a printed configuration has them
        raise UserError(f"no such option '--{key}': give --seed_everything")
    fit = Fit(configuration(given.config, given.settings), command="fit", complete=not given.print_config)
    fit.resume = given.resume
    if given.print_config:
        print(fit.parser.dump(fit.config, skip_unset=False, skip_validation=True), end="")
        return 0
    fit.build().run()
    if fit.trainer.is_global_zero and fit.trainer.state.finished:
        say(*fit.conclusion())
    return 0


class Fit(Training):
    """A training in a new folder below `--output`; can resume there, or start from the weights of a checkpoint."""

    _run: RunFolder
    _last: LastEpoch
    resume = False

    def build(self) -> Self:
        """Claim a folder and build the parts. Only the first process claims a folder.

        Raises:
            UserError: a part is invalid, or the fit cannot resume from its `last.ckpt`.
        """
        config = self.config
        _refuse_unusable(config, self.resume)
        parent = Path(config.output) / "fit" / (config.name or _default_name(config))
        is_first = is_first_rank()
        self._run = claim(parent, plain(self.parser, config), self.resume) if is_first else RunFolder(parent)
        self.folder = self._run.path
        try:
            super().build()
            self._refuse_other_number()
            if is_first and self._run.state == "unfinished":
                self._last.check()
            if config.ckpt_path is not None and self._run.state == "new":
                start_from_checkpoint(config.ckpt_path, self.model, self.datamodule, self.config_dump)
        except BaseException:
            self._release()
            raise
        return self

    def _refuse_other_number(self) -> None:
        """Check the launcher's number of processes against devices x nodes: with another number a fit would hang."""
        launched, devices, nodes = launched_together(), self.trainer.num_devices, self.trainer.num_nodes
        if launched is None or launched[0] == "sbatch":
            return
        there = launched_nodes() or nodes
        if (launched[1], there) != (devices * nodes, nodes):
            raise UserError(
                f"{launched[0]} started this fit as {launched[2]} on {there} nodes: give --trainer.num_nodes {there}, "
                f"not {nodes}, and the processes of one node as --trainer.devices, not {devices}"
            )

    def _learn_folder(self) -> None:
        """Broadcast the folder of the first process: each process reads the checkpoint to resume from."""
        strategy: Any = self.trainer.strategy
        if self.trainer.num_devices * self.trainer.num_nodes == 1 or strategy.launcher is None:
            return
        strategy.launcher.launch(strategy.setup_environment)  # starts the processes, unless srun or torchrun did
        path, state = strategy.broadcast((self._run.path, self._run.state))
        if not is_first_rank():
            self._run = RunFolder(path, state)

    def _release(self) -> None:
        if is_first_rank():
            self._run.release()

    def make_trainer(self) -> Trainer:
        trainer = super().make_trainer()
        if self.config.trainer.enable_checkpointing is not False:
            identity = partial(self.identity, self.config_dump, sources(self.config_dump))
            self._last = LastEpoch(self._run.path, identity, self.config.checkpoint_seconds)
            trainer.callbacks.insert(0, self._last)  # type: ignore[attr-defined]
        return trainer

    def run(self) -> None:
        """Trainer.fit, from `last.ckpt` if this fit was stopped. Does nothing if it is finished.

        Raises:
            KeyboardInterrupt: Ctrl-C or a signal; Lightning would exit instead.
            UserError: A callback or a weight is wrong.
        """
        try:
            self._learn_folder()
            if self._run.state == "finished":
                if is_first_rank():
                    say(f"{self._run.path} is finished: nothing to do (without --resume a new fit begins)")
                return
            self._begin()
            last = self._run.path / LAST if self._run.state == "unfinished" else None
            with interruptible():
                self.trainer.fit(self.model, datamodule=self.datamodule, ckpt_path=last, weights_only=True)
        except KeyboardInterrupt:
            best, again = self._run.path / BEST, "no epoch is kept: the same command starts again"
            if (self._run.path / LAST).exists():
                again = "the same command with --resume continues after the last epoch that it kept"
            raise KeyboardInterrupt("; ".join([*[f"best so far: {best}"] * best.exists(), again])) from None
        except (RuntimeError, ValueError) as error:
            said = str(error).strip()
            option = next((option for start, option in MISTAKES.items() if said.startswith(start)), None)
            if option is None:
                raise
            raise UserError(f"{option}: {said}") from error
        else:
            if is_first_rank():
                self._run.finish()
        finally:
            self._release()

    def _begin(self) -> None:
        if not is_first_rank():
            return
        if self._run.state == "unfinished":
            say(f"resuming in {self.folder}")
            return
        self.write_config()
        say(*self.datamodule.overview())
        if isinstance(trunk := getattr(self.model, "trunk", None), Trunk):
            say(f"trunk: {trunk.summary()}")
        if self.resume:
            say(f"note: nothing to resume: {self._run.path.parent} has no stopped fit of these settings")

    def conclusion(self) -> list[str]:
        """The last lines of a fit: its batches, its best score, and the next command."""
        notes, root = self.datamodule.notes, self.config_dump["data"].get("root")
        lines = [self.datamodule.summary(), *([f"note: {notes}"] if notes else [])]
        trusted = [word for name in sorted(user_packages(self.config_dump)) for word in ("--trust", name)]
        best = f"{self.folder}/{BEST}"
        words = shlex.join(["--ckpt_path", best, *trusted, *(["--data.root", root] if root else [])])
        if self.kept_last:
            kept = f"trained for {self.best_epoch + 1} epochs and kept the last: {best}"
            return [*lines, kept, f"next: levelfield predict {words}"]
        if not self.validated:
            return [*lines, f"nothing was validated: no {BEST}"]
        when = "before the first step" if self.best_epoch == BEFORE_TRAINING else f"in epoch {self.best_epoch}"
        score = f"best validation {title_of(self.selected_by)} {self.best_score:.4f} {when}: {best}"
        return [*lines, score, f"next: levelfield validate {words}"]


def _default_name(config: Namespace) -> str:
    """`<data set>-<loss>`, with the names of the classes."""
    loss = config["model"].get("loss") or {"class_path": config["model"].get("learner")}  # of a learner without a loss
    names = (config["data"]["dataset"]["class_path"], getattr(loss, "__name__", None) or loss["class_path"])
    return "-".join(name.rpartition(".")[2] for name in names)


def _refuse_unusable(config: Namespace, resume: bool) -> None:
    """Raise UserError if the options of the folder or of the last checkpoint do not fit."""
    name, seconds = config.name, config.checkpoint_seconds
    if name is not None and (not name or Path(name).is_absolute() or ".." in Path(name).parts):
        raise UserError(f"--name {name or repr('')}: give the name of a folder inside {config.output}/fit")
    if not 0 <= seconds < float("inf"):
        raise UserError(f"--checkpoint_seconds {seconds:g}: give seconds, 0 or more")
    if resume and config.trainer.enable_checkpointing is False:
        raise UserError("--resume needs last.ckpt: leave --trainer.enable_checkpointing false out")
