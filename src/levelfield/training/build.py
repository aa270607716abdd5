"""Build one training from a configuration: Trainer, learner and datamodule."""

import logging
import os
import time
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Self

import torch
import yaml
from lightning.fabric.utilities import disable_possible_user_warnings
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import Logger, WandbLogger
from lightning.pytorch.plugins.environments import LightningEnvironment, SLURMEnvironment
from lightning.pytorch.plugins.io import CheckpointIO
from lightning.pytorch.profilers import PassThroughProfiler
from torch import Tensor

from levelfield.core.configuration import Config, as_list
from levelfield.core.errors import UserError, refuse_below
from levelfield.core.files import write_atomically
from levelfield.core.paths import find_own_modules, strip_paths
from levelfield.core.processes import is_first_rank
from levelfield.core.versions import code_version, library_versions, processor
from levelfield.data.dataset import MetricDataset
from levelfield.data.own import dataset_without_paths
from levelfield.data.splits import NO_FOLD
from levelfield.models.trunks import Trunk
from levelfield.training.callbacks import KeepStart, RetrievalValidation, UntilDone, ValidateFirst
from levelfield.training.callbacks.retrieval_validation import best_checkpoints, monitor_of
from levelfield.training.frozen_trunk import trunk_hash
from levelfield.training.initial_weights import check_weight_files
from levelfield.training.learner import MetricLearner
from levelfield.training.loss_factory import loss_attribute
from levelfield.training.optimization import Optimization
from levelfield.training.plain_module import adapted, user_class
from levelfield.training.run_folder import AtomicCheckpoints, BestCheckpoint, MetricsFile, determining
from levelfield.training.settings import OF_THE_LOSS, instantiate, parameters, parse_training, plain
from levelfield.training.start import check_features
from levelfield.training.trackers import place_trackers
from levelfield.training.weight_averaging import averages

# Smallest values of arguments that a Trainer does not check.
LEAST = {
    1: ("accumulate_grad_batches", "check_val_every_n_epoch"),
    0: ("gradient_clip_val", "log_every_n_steps", "min_epochs", "min_steps"),
    -1: ("num_sanity_val_steps",),
}
MOST_SEED = 2**32 - 1  # numpy's limit
LIST_SECONDS = 60.0  # until a list of samples is read again: a new file in a folder changes no known file
# Messages of Lightning about intended choices of levelfield, or about things that the user cannot change.
EXPECTED_NOTICES = (
    ".* directory .* exists and is not empty.*",  # of checkpoints, and of logs
    ".*The dirpath has changed from.*",  # a fit from a checkpoint writes to its own folder
    ".*is an instance of `nn.Module` and is already saved during checkpointing.*",
    ".*LeafSpec.* is deprecated.*",
)
_NOTHING = nullcontext()


class NoProfiler(PassThroughProfiler):
    """Lightning's `PassThroughProfiler`, without a generator for each of the many actions of a step."""

    def profile(self, action_name: str) -> Any:
        return _NOTHING


class SharedParts:
    """Builds trunk and data set, or returns those of the last training if they would be the same."""

    def __init__(self) -> None:
        self._trunk: Any = (None, None, "", None)
        self._dataset: Any = (None, None, 0.0)

    def trunk(self, kind: type[Trunk], arguments: dict[str, Any]) -> Trunk:
        """A trunk with the weights that `kind(**arguments)` would have.

        It is shared if class, arguments and the state of torch's generator are equal, as for all methods and folds of a
        trial or run. The generator then advances as if the trunk had been built, so later draws are the same.
        """
        asked = (kind, repr(arguments), torch.get_rng_state().numpy().tobytes())
        known, trunk, content, after = self._trunk
        if known == asked and trunk.adapter is None and trunk_hash(trunk) == content:
            torch.set_rng_state(after)
            return trunk
        trunk = kind(**arguments)
        self._trunk = asked, trunk, trunk_hash(trunk), torch.get_rng_state()
        return trunk

    def dataset(self, kind: type[MetricDataset], arguments: dict[str, Any]) -> MetricDataset:
        """The data set `kind(**arguments)`, which keeps its list of samples for `LIST_SECONDS`."""
        asked, now = (kind, repr(arguments)), time.monotonic()
        known, dataset, since = self._dataset
        if known != asked or now - since >= LIST_SECONDS:
            dataset = kind(**arguments)
            self._dataset = asked, dataset, now
        return dataset


_shared_parts = SharedParts()  # of the trainings of this process
_no_profiler = NoProfiler()  # one for all trainings: a Ctrl-C within its `__del__` would be lost


class TrackedRun(Callback):
    """Logs all settings and the best score to the trackers. It ends a W&B run: the next training has its own."""

    def __init__(self, trackers: list[Logger], settings: Config) -> None:
        self.trackers, self.settings = trackers, settings

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        for logger in self.trackers:
            logger.log_hyperparams(self.settings)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for kept in best_checkpoints(trainer)[:1]:
            best = {f"best/{kept.monitor.removeprefix('val/')}": float(kept.best_model_score)}
            for logger in self.trackers:
                logger.log_metrics(best, step=max(trainer.global_step - 1, 0))  # the last step, as Lightning counts

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: Any) -> None:
        for logger in self.trackers:
            if isinstance(logger, WandbLogger) and trainer.is_global_zero and logger.version:  # it has begun
                logger.experiment.finish()

    on_exception = teardown  # type: ignore[assignment] # Lightning gives no names


class Training:
    """Trainer, learner and datamodule of a configuration. The constructor checks it; `build` builds the parts.

    Args:
        config: The configuration as for `levelfield fit --config`, as plain values.
        folder: Folder of the training; None writes nothing.
        tracked: Arguments for `wandb.init`: the run's `name`, its `group`, and more.
        trunks: Folder for a frozen trunk of several trainings; None stores it in each checkpoint.
        kept: Parts, including the trunk, that trainings share if they are only checked.
        command: `fit`, `validate`, `test` or `predict`; None for a job of a study.
        complete: Whether required arguments must be given; a configuration without them can only be printed.

    Raises:
        UserError: A key, class or value that is not accepted.
    """

    def __init__(
        self,
        config: Config,
        folder: Path | None = None,
        tracked: Mapping[str, Any] | None = None,
        trunks: Path | None = None,
        kept: SharedParts | None = None,
        command: str | None = None,
        complete: bool = True,
    ) -> None:
        self.folder, self.command = folder, command
        self._trunks, self._kept, self._tracked = trunks, kept, tracked
        self._best: ModelCheckpoint | None = None
        find_own_modules(config)
        disable_possible_user_warnings()
        for notice in EXPECTED_NOTICES:
            warnings.filterwarnings("ignore", notice)
        for package in ("pytorch", "fabric", "pytorch.callbacks", "pytorch.profilers"):  # a user asks for the last two
            logging.getLogger(f"lightning.{package}").setLevel("INFO" if "." in package else "WARNING")
        learner, datamodule = (user_class(section, config.get(section)) for section in ("model", "data"))
        ignored = set[str]()  # a study's base may set them for other learners
        if not issubclass(learner, MetricLearner):
            ignored = {*parameters(MetricLearner), *parameters(Optimization)} - {*parameters(learner)}
        self.parser, self.config = parse_training(learner, datamodule, config, command, complete, ignored)
        self._model_class = learner
        for option in OF_THE_LOSS if complete else ():  # attributes of the loss class, so that config.yaml has them
            if option in self.config and self.config[option] is None:
                self.config[option] = loss_attribute(self.config.model.get("loss"), option)
        seed = self.config.seed_everything
        if not 0 <= seed <= MOST_SEED:
            raise UserError(f"--seed_everything {seed}: give 0 to {MOST_SEED}")

    def build(self) -> Self:
        """Build the parts; writes nothing.

        Raises:
            UserError: An invalid part.
        """
        seed_everything(self.config.seed_everything, workers=True)
        config = self.config.clone()  # config.yaml keeps what the user gave
        if self.folder is not None:
            of_a_fit = {"name": "-".join(self.folder.parts[-2:]), "group": self.folder.parent.name, "job_type": "fit"}
            place_trackers(config.trainer.logger, self.folder, self._tracked or of_a_fit)
        config.model.pop("learner", None)  # the parser has the classes
        config.data.pop("datamodule", None)
        shared = self._kept or (_shared_parts if self._trunks else None)
        is_frozen = self._model_class is MetricLearner and (self._kept is not None or config.data.features)
        builders: dict[type, Any] = {MetricDataset: shared.dataset} if shared else {}
        if shared and is_frozen:
            builders[Trunk] = shared.trunk
        self.parts = instantiate(self.parser, config, builders)
        self.datamodule, self.model = self.parts.data, self.parts.model
        if self.datamodule.features:
            check_features(self.model)
        adapted(self.model)
        self.config_dump = plain(self.parser, self.config)
        self.model.save_hyperparameters(strip_paths(self.config_dump["model"]), logger=False)  # TrackedRun logs all
        # Checkpoints do not depend on local folders.
        data = {**self.config_dump["data"], "root": None}
        data["dataset"] = dataset_without_paths(data["dataset"])
        self.datamodule.save_hyperparameters(data, logger=False)
        if self.command in (None, "fit"):
            check_weight_files(self.config_dump["model"], self.datamodule)
        self.trainer = self.make_trainer()
        self.datamodule.device = self.trainer.strategy.root_device
        return self

    def identity(self, config: Mapping[str, Any], sources: Mapping[str, str]) -> dict[str, Any]:
        """What determines the results of a training: configuration, data, code and machine."""
        return {
            "configuration": determining(config),
            "data": self.datamodule.identity(),
            "sources": dict(sources),
            "libraries": library_versions(),
            "device": self.trainer.strategy.root_device.type,
        }

    def provenance(self) -> dict[str, Any]:
        """Code, libraries and devices behind the result."""
        device = self.trainer.strategy.root_device
        return {
            "code": code_version(),
            "libraries": library_versions(self.model),
            "processor": processor(),
            "device": str(device),
            "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
            "weights": getattr(getattr(self.model, "trunk", None), "weights_origin", None),  # a user's may have none
        }

    def make_trainer(self) -> Trainer:
        """The Trainer with the callbacks, the loggers and the plugins of a training."""
        config = dict(self.parts.trainer.items())
        callbacks = as_list(config.pop("callbacks"))
        if config.get("max_steps") == 0:
            callbacks = [*(each for each in callbacks if not isinstance(each, ValidateFirst)), KeepStart()]
            config |= {"max_steps": -1, "max_epochs": 1}
        if self.datamodule.fold == NO_FOLD and self.command in (None, "fit"):
            if config.get("max_epochs") == -1 and config.get("max_steps", -1) == -1 and config.get("max_time") is None:
                raise UserError("--data.fold none trains without validation: give its length, --trainer.max_epochs")
            early = [each for each in callbacks if isinstance(each, EarlyStopping) and each.monitor.startswith("val/")]
            callbacks = [each for each in callbacks if each not in early]
            config["limit_val_batches"] = 0  # Lightning would warn about an empty list of loaders
        given, config["logger"] = config.get("logger"), False
        if self.folder is not None:
            if config.get("enable_checkpointing") is not False:
                monitor = None if self.datamodule.fold == NO_FOLD else monitor_of(callbacks)
                self._best = BestCheckpoint(self.folder, monitor, bool(averages(callbacks)))
                callbacks.append(self._best)
            trackers = [] if given in (None, True, False) else as_list(given)  # `metrics.csv` is always written too
            if trackers:
                callbacks.append(TrackedRun(trackers, self.config_dump))
            config["logger"] = [MetricsFile(str(self.folder), name="", version=""), *trackers]
        if self.command is None:
            config["enable_progress_bar"] = False
        config["profiler"] = config.get("profiler") or _no_profiler
        for smallest, keys in LEAST.items():
            refuse_below(smallest, "trainer", **{key: config.get(key) for key in keys})
        if config.get("val_check_interval") == 0:
            raise UserError("--trainer.val_check_interval 0: give 1 or more batches, or a fraction of an epoch")
        if config.get("default_root_dir"):
            raise UserError("--trainer.default_root_dir: give --output, the folder for all output")
        config["default_root_dir"] = str(self.folder)  # Lightning loads any hpc_ckpt_*.ckpt from there
        plugins = as_list(config.pop("plugins", None))
        if not any(isinstance(plugin, CheckpointIO) for plugin in plugins):
            plugins.append(AtomicCheckpoints(self._trunks))
        try:
            trainer = Trainer(**config, callbacks=callbacks, plugins=plugins)
        except (ValueError, TypeError, RuntimeError, ImportError, MisconfigurationException) as error:
            named = f".accelerator {config['accelerator']}" if "backend found" in str(error) else ""
            raise UserError(f"--trainer{named}: {' '.join(str(error).split())}") from error
        # With `deterministic` torch also fills new memory. No operation here reads what it has not written.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        if getattr(trainer.strategy, "_start_method", "popen") != "popen":
            raise UserError(f"--trainer.strategy {config['strategy']} is for notebooks: give ddp")
        environment = trainer._accelerator_connector.cluster_environment
        if trainer.num_nodes > 1 and isinstance(environment, LightningEnvironment):  # it would wait forever
            raise UserError(f"--trainer.num_nodes {trainer.num_nodes}: start it with torchrun on each node, or by srun")
        if isinstance(environment, SLURMEnvironment):
            environment.auto_requeue = False  # it would write hpc_ckpt_*.ckpt into the working directory
            started, asked = os.environ.get("SLURM_STEP_NUM_TASKS", "1"), trainer.num_devices * trainer.num_nodes
            # Otherwise Lightning would train on one device, or wait forever. A study starts its jobs' processes itself.
            if self.command is not None and 1 < asked != int(started):
                raise UserError(
                    f"--trainer.devices: srun started {started} of {asked} processes (devices times nodes): start the "
                    f"command with srun --ntasks-per-node {trainer.num_devices}, or on one node unset SLURM_NTASKS"
                )
        return trainer

    def write_config(self) -> None:
        """`config.yaml` in the run's folder: `levelfield fit --config config.yaml` repeats the run."""
        assert self.folder is not None
        if is_first_rank():
            write_atomically(self.folder / "config.yaml", yaml.safe_dump(self.config_dump, sort_keys=False).encode())

    @property
    def validated(self) -> bool:
        """Whether `best.ckpt` is from the best epoch; this needs checkpoints, validation and an epoch."""
        return self._best is not None and self._best.best_model_score is not None

    @property
    def kept_last(self) -> bool:
        """Whether `best.ckpt` is from the last epoch, after a training on the whole training half."""
        return self._best is not None and self._best.monitor is None and bool(self._best.best_model_path)

    @property
    def selected_by(self) -> str:
        """The score that selects the best epoch: `map_at_r`, or that of `RetrievalValidation`."""
        return monitor_of(self.trainer.callbacks).removeprefix("val/")  # type: ignore[attr-defined]

    @property
    def best_score(self) -> float:
        """The best validation score (`selected_by`) of the fit; MAP@R is a fraction.

        Raises:
            UserError: nothing was validated.
        """
        if not self.validated:
            raise UserError("nothing was validated, so there is no best.ckpt: check the limits and epochs of --trainer")
        return float(self._best.best_model_score)  # type: ignore[union-attr, arg-type]

    @property
    def best_queries(self) -> tuple[dict[str, Tensor], Tensor] | None:
        """`RetrievalValidation.best_queries`."""
        callbacks = self.trainer.callbacks  # type: ignore[attr-defined]
        return next((each.best_queries for each in callbacks if isinstance(each, RetrievalValidation)), None)

    @property
    def best_epoch(self) -> int:
        """The epoch (from 0; -1 before the first step) whose checkpoint is `best.ckpt`."""
        return int(self._read_best()["epoch"])

    @property
    def ending(self) -> dict[str, Any]:
        """How a training with a checkpoint ended, as plain values.

        `steps`; `best_step`, the steps of `best.ckpt`; `stopped_by`, `patience` or `cap` with `UntilDone`.
        """
        found: dict[str, Any] = {"steps": self.trainer.global_step, "best_step": int(self._read_best()["global_step"])}
        for each in self.trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(each, UntilDone):
                found["stopped_by"] = "patience" if each.is_done else "cap"
        return found

    def _read_best(self) -> dict[str, Any]:
        """The content of `best.ckpt`, memory-mapped, without reading the weights."""
        assert self.folder is not None
        return torch.load(self.folder / "best.ckpt", map_location="cpu", weights_only=True, mmap=True)
