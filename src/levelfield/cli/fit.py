"""`levelfield fit`: one training in a folder of its own, which `--resume` continues."""

from functools import partial
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from lightning.pytorch import Callback

from levelfield.cli.options import Options, configuration
from levelfield.core.configuration import Config
from levelfield.core.source_identity import sources
from levelfield.errors import UserError
from levelfield.metrics.table import title_of
from levelfield.models.trunks import Trunk
from levelfield.runtime.launchers import launched_nodes, launched_together
from levelfield.runtime.signals import Stopped
from levelfield.training.build import Training
from levelfield.training.callbacks.last_epoch import LastEpoch
from levelfield.training.callbacks.validate_first import BEFORE_TRAINING
from levelfield.training.initial_weights import start_from_checkpoint
from levelfield.training.interruption import interruptible
from levelfield.training.run_folder import BEST, LAST, RunFolder, claim, is_first_process
from levelfield.training.settings import plain
from levelfield.training.trust import own_packages

# Options without a dot that are settings: a file can have them too.
SETTINGS = ("seed_everything", "name", "output", "checkpoint_seconds", "ckpt_path")
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
    """A training that claims a folder below `--output`, and resumes there or starts from a checkpoint's weights."""

    _run: RunFolder
    _last: LastEpoch

    def __init__(self, config: Config, resume: bool, complete: bool = True) -> None:
        self._resume = resume
        super().__init__(config, command="fit", complete=complete)

    def build(self) -> None:
        """Claim a folder and make the parts. Only the first process of a run claims one.

        Raises:
            UserError: a part is refused, or the fit cannot resume from its `last.ckpt`.
        """
        config = self.config
        _refuse_unusable(config, self._resume)
        parent = Path(config.output) / "fit" / (config.name or _default_name(config))
        is_first = is_first_process()
        self._run = claim(parent, plain(self.parser, config), self._resume) if is_first else RunFolder(parent)
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

    def _learn_folder(self) -> None:
        """Let all processes know the folder of the first: each reads the checkpoint that a fit resumes from."""
        strategy: Any = self.trainer.strategy
        several = self.trainer.num_devices * self.trainer.num_nodes > 1
        if not several or strategy.launcher is None or strategy.launcher.is_interactive_compatible:  # forks know it
            return
        strategy.launcher.launch(strategy.setup_environment)  # starts the processes, unless srun or torchrun did
        path, state = strategy.broadcast((self._run.path, self._run.state))
        if not is_first_process():
            self._run = RunFolder(path, state)

    def _release(self) -> None:
        if is_first_process():
            self._run.release()

    def with_callbacks_of_command(self, callbacks: list[Callback]) -> list[Callback]:
        if self.config.trainer.enable_checkpointing is False:
            return callbacks
        identity = partial(self.identity, self.config_dump, sources(self.config_dump))
        self._last = LastEpoch(self._run.path, identity, self.config.checkpoint_seconds)
        return [self._last, *callbacks]

    def run(self) -> None:
        """Trainer.fit, from `last.ckpt` if this fit was killed; nothing if it is finished.

        Raises:
            KeyboardInterrupt: Ctrl-C, which Lightning would turn into an exit.
            Stopped: A signal came.
            UserError: A callback or a weight does not fit.
        """
        try:
            self._learn_folder()
            if self._run.state == "finished":
                if is_first_process():
                    print(f"{self._run.path} is finished: nothing to do (another one begins without --resume)")
                return
            self._begin()
            last = self._run.path / LAST if self._run.state == "unfinished" else None
            with interruptible():
                self.trainer.fit(self.model, datamodule=self.datamodule, ckpt_path=last, weights_only=True)
        except KeyboardInterrupt:
            best = self._run.path / BEST
            kept = [f"best so far: {best}"] * best.exists()
            raise KeyboardInterrupt("; ".join([*kept, *self._how_to_resume()])) from None
        except Stopped as stop:
            stop.remedy = "; ".join(self._how_to_resume())
            raise
        except RuntimeError as error:
            if not str(error).startswith("Early stopping conditioned on metric"):
                raise
            raise UserError(f"--trainer.callbacks: {error}") from error
        else:
            if is_first_process():
                self._run.finish()
        finally:
            self._release()

    def _begin(self) -> None:
        if not is_first_process():
            return
        if self._run.state == "unfinished":
            print(f"resuming in {self.folder}")
            return
        self.write_config()
        trunk = getattr(self.model, "trunk", None)
        of_trunk = [f"trunk: {trunk.summary()}"] if isinstance(trunk, Trunk) else []
        print("\n".join([*self.datamodule.overview(), *of_trunk]))
        if self._resume:
            print(f"note: nothing to resume: no fit of these settings was stopped in {self._run.path.parent}")

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

    def _how_to_resume(self) -> list[str]:
        if not (self._run.path / LAST).exists():
            return ["no epoch is kept: the same command begins again"]
        return ["the same command with --resume continues at the last whole epoch that it kept"]


def _default_name(config: Namespace) -> str:
    """`<data set>-<loss>`, in the words of the command line."""
    data, loss = config["data"]["dataset"]["class_path"], config["model"].get("loss")
    if loss is None:  # a LightningModule without the argument
        names = (data, config["model"]["learner"])
    else:
        names = (data, loss.__name__ if callable(loss) else loss["class_path"])  # a function is there itself
    return "-".join(name.rpartition(".")[2] for name in names)


def _refuse_unusable(config: Namespace, resume: bool) -> None:
    """Raise UserError if a fit cannot do what was asked of its folder and its last state."""
    name, seconds = config.name, config.checkpoint_seconds
    if name is not None and (not name or Path(name).is_absolute() or ".." in Path(name).parts):
        raise UserError(f"--name {name or repr('')}: give a folder's name, for it lies in {config.output}/fit")
    if not 0 <= seconds < float("inf"):
        raise UserError(f"--checkpoint_seconds {seconds:g}: give seconds, 0 or more")
    if resume and config.trainer.enable_checkpointing is False:
        raise UserError("--resume needs last.ckpt, which --trainer.enable_checkpointing false does not keep")
