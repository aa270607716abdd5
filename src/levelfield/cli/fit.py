"""`levelfield fit`: one training in a folder of its own, which a stopped fit goes on in."""

import time
from functools import partial
from pathlib import Path

import torch
from jsonargparse import Namespace
from lightning.pytorch import Callback

from levelfield.cli.options import Options, configuration
from levelfield.core.configuration import Config
from levelfield.core.source_identity import sources
from levelfield.errors import UserError
from levelfield.metrics.table import title_of
from levelfield.runtime.launchers import launched_nodes, launched_together
from levelfield.runtime.signals import Stopped
from levelfield.storage.without_places import without_places
from levelfield.training.build import Training
from levelfield.training.callbacks.asked_rates import AskedRates, asked_rates
from levelfield.training.callbacks.last_checkpoint import LastCheckpoint
from levelfield.training.callbacks.validate_first import BEFORE_TRAINING
from levelfield.training.checkpoint import read_checkpoint
from levelfield.training.checkpoint_content import check_callbacks
from levelfield.training.contradictions import refuse_finished, refuse_other_architecture, refuse_other_folds
from levelfield.training.interruption import interruptible
from levelfield.training.run_claim import BEST, LAST, Claim, claim, learns_from_group
from levelfield.training.run_folder import default_name, is_first_process
from levelfield.training.settings import plain
from levelfield.training.trust import own_packages

# Options without a dot that are settings: a file can have them too.
SETTINGS = ("seed_everything", "name", "output", "checkpoint_seconds", "ckpt_path", "weights_only")
# `seed_everything` sets these; a printed configuration has them.
LINKED = ("model.seed", "data.seed")


def main(argv: list[str]) -> int:
    """Run `levelfield fit` with `argv` (what follows `fit`) and return the exit code."""
    options = Options(settings=SETTINGS)
    options.add_argument("-c", "--config", action="append", default=[])
    options.add_argument("--print_config", action="store_true")
    options.add_argument("--resume", action="store_true")
    given = options.read(argv)
    for key in {key for key, _ in given.settings} & set(LINKED):
        raise UserError(f"no such option '--{key}': give --seed_everything")
    fit = Fit(configuration(given.config, given.settings), given.resume, complete=not given.print_config)
    if given.print_config:
        print(fit.printed(), end="")
        return 0
    fit.build()
    fit.run()
    if fit.trainer.is_global_zero and fit.trainer.state.finished:
        print("\n".join(fit.conclusion()))
    return 0


class Fit(Training):
    """A training that claims a folder below `--output`, and goes on there or from a checkpoint."""

    _claim: Claim
    _last: LastCheckpoint

    def __init__(self, config: Config, resume: bool, complete: bool = True) -> None:
        self._started = time.monotonic()
        self._resume = resume
        super().__init__(config, command="fit", complete=complete)

    def build(self) -> None:
        """Claim a folder and make the parts; on a process that another one started, in that one's folder."""
        config = self.config
        _refuse_unusable(config, self._resume)
        self._claim_folder(Path(config.output) / "fit" / (config.name or default_name(config)))
        try:
            super().build()
            self._refuse_other_number()
            if learns_from_group(self.trainer):
                with torch.random.fork_rng(devices=[]):  # Lightning seeds anew there
                    self.trainer.strategy.setup_environment()
                words = self.trainer.strategy.broadcast((self._claim.folder, self._claim.state))
                if not is_first_process():
                    self._claim = Claim(*words)
                    self.folder = self._claim.folder
                    self.trainer = self.make_trainer()
        except BaseException:
            self._release()
            raise

    def _refuse_other_number(self) -> None:
        """A process too many would train alone, one too few would be waited for."""
        launched, asked = launched_together(), self.trainer.num_devices * self.trainer.num_nodes
        if launched is None or launched[0] == "sbatch":
            return
        if launched[1] != asked:
            raise UserError(
                f"{launched[0]} started this fit as {launched[2]}, for which --trainer.devices (of a machine) and "
                f"--trainer.num_nodes make {asked}"
            )
        nodes = launched_nodes()
        if nodes not in (None, self.trainer.num_nodes):
            raise UserError(
                f"{launched[0]} started this fit on {nodes} nodes: give --trainer.num_nodes {nodes}, and by "
                f"--trainer.devices how many processes a node has, not {self.trainer.num_devices} on "
                f"{self.trainer.num_nodes}"
            )

    def _claim_folder(self, parent: Path) -> None:
        """The first process claims a folder, and tells those that it starts itself; others learn it from the group."""
        if is_first_process():
            self._claim = claim(parent, plain(self.parser, self.config), self._resume)
            self._claim.tell()
        else:
            self._claim = Claim.told() or Claim(parent / "unknown")
        self.folder = self._claim.folder

    def _release(self) -> None:
        if is_first_process():
            self._claim.release()

    def with_callbacks_of_command(self, callbacks: list[Callback]) -> list[Callback]:
        config = self.config
        if config.ckpt_path is not None:
            callbacks = [*callbacks, self._rates_beside(config.ckpt_path)]
        if config.trainer.enable_checkpointing is False:
            return callbacks
        identity = partial(self.identity, self.config_dump, sources(self.config_dump))
        self._last = LastCheckpoint(self._claim.folder, identity, config.checkpoint_seconds, self._started)
        return [self._last.first, *callbacks, self._last]

    def _rates_beside(self, path: Path) -> AskedRates:
        """A fit that goes on from a checkpoint has its architecture, data set and fold, and a step left to do."""
        checkpoint = read_checkpoint(path)
        check_callbacks(checkpoint.get("callbacks", {}), path)
        if "datamodule_hyper_parameters" not in checkpoint:
            raise UserError(
                f"'{path}' was fitted with loaders of one's own, which it cannot name: go on from it in Python, "
                "trainer.fit(learner, loader, ckpt_path=..., weights_only=True)"
            )
        stored, asked = without_places(checkpoint["hyper_parameters"]), without_places(self.config_dump["model"])
        refuse_other_architecture(stored, asked, path)
        refuse_other_folds(checkpoint["datamodule_hyper_parameters"], self.config_dump["data"], path)
        trainer = self.config_dump["trainer"]
        refuse_finished(checkpoint, trainer["max_epochs"], trainer["max_steps"], path)
        return asked_rates(stored, asked)

    def run(self) -> None:
        """Trainer.fit, on from `last.ckpt` if this fit was stopped; nothing if it is finished.

        Raises:
            KeyboardInterrupt: Ctrl-C, which Lightning would turn into an exit.
            Stopped: A signal came; the last state is written.
            UserError: `last.ckpt` is of other data or code, or damaged.
        """
        if self._claim.state == "new":
            self._begin()
        if self._claim.state == "finished":
            if is_first_process():
                print(f"{self.folder} is finished: nothing to do (another one begins without --resume)")
            return
        checkpoint: str | Path | None = self.config.ckpt_path
        try:
            if self._claim.state == "unfinished":
                checkpoint = self._state_to_go_on_from()
            with interruptible(self.trainer):
                self.trainer.fit(
                    self.model, datamodule=self.datamodule, ckpt_path=checkpoint, weights_only=self.config.weights_only
                )
        except KeyboardInterrupt:
            best = self._claim.folder / BEST
            kept = [f"best so far: {best}"] * best.exists()
            raise KeyboardInterrupt("; ".join([*kept, *self._how_to_go_on()])) from None
        except Stopped as stop:
            stop.remedy = "; ".join(self._how_to_go_on())
            raise
        except RuntimeError as error:
            if str(error).startswith("Early stopping conditioned on metric"):
                raise UserError(f"--trainer.callbacks: {error}") from error
            if "loading state_dict" not in str(error) or checkpoint is None:
                raise
            line = " ".join(str(error).split())
            raise UserError(f"'{checkpoint}' has weights of other shapes: {line[:200]}") from error
        else:
            if is_first_process():
                self._claim.finish()
        finally:
            self._release()

    def _begin(self) -> None:
        self.write_config()
        if is_first_process():
            print("\n".join([*self.datamodule.overview(), f"trunk: {self.model.trunk.summary()}"]))
            if self._resume:
                parent = self._claim.folder.parent
                print(f"note: nothing to go on with: no fit of these settings was stopped in {parent}")

    def conclusion(self) -> list[str]:
        """What a finished fit says: its batches, its best score, and the next command."""
        lines = [self.datamodule.summary()]
        if self.datamodule.notes:
            lines.append(f"note: {self.datamodule.notes}")
        trusted = "".join(f" --trust {name}" for name in sorted(own_packages(self.config_dump)))
        best = f"{self.folder}/{BEST}"
        if self.kept_last:
            next_command = f"next: levelfield predict --ckpt_path {best}{trusted}"
            return [*lines, f"trained for {self.best_epoch + 1} epochs, the last one kept: {best}", next_command]
        if not self.validated:
            return [*lines, f"nothing was validated or kept: no {BEST}"]
        when = "before the first step" if self.best_epoch == BEFORE_TRAINING else f"in epoch {self.best_epoch}"
        score = f"best validation {title_of(self.selected_by)} {self.best_score:.4f} {when}: {best}"
        return [*lines, score, f"next: levelfield validate --ckpt_path {best}{trusted}"]

    def _how_to_go_on(self) -> list[str]:
        kept = (self._claim.folder / LAST).exists()
        return ["the same command with --resume goes on"] if kept else []

    def _state_to_go_on_from(self) -> Path:
        differences = self._last.differences()
        if differences is None:
            raise UserError(f"{self._last.path} or the {BEST} beside it is damaged: leave --resume out to begin again")
        if differences:
            raise UserError(
                f"{self._last.path} was written with other {' and '.join(differences)}: go on with the same, or leave "
                "--resume out to begin again"
            )
        if is_first_process():
            print(f"going on in {self.folder}")
        return self._last.path


def _refuse_unusable(config: Namespace, resume: bool) -> None:
    """Raise UserError if a fit cannot do what was asked of its folder and its last state."""
    name, seconds = config.name, config.checkpoint_seconds
    if name is not None and (not name or Path(name).is_absolute() or ".." in Path(name).parts):
        raise UserError(f"--name {name or repr('')}: give a folder's name, for it lies in {config.output}/fit")
    if not 0 <= seconds < float("inf"):
        raise UserError(f"--checkpoint_seconds {seconds:g}: give seconds, 0 or more")
    if resume and config.trainer.enable_checkpointing is False:
        raise UserError("--resume goes on from last.ckpt, which --trainer.enable_checkpointing false does not keep")
