"""Where the trackers of a configuration write, what a run is called there, and how W&B is told."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from levelfield.errors import UserError

# Of W&B, for runs of which there are hundreds: it prints nothing, and keeps nothing of what is printed.
QUIET = {"silent": True, "console": "off"}
WANDB, TENSORBOARD = ("WandbLogger",), ("TensorBoardLogger",)


def place_trackers(loggers: Any, folder: Path, run: Mapping[str, Any]) -> None:
    """Puts the trackers of a configuration, before they are built, into a run's folder.

    Args:
        loggers: `trainer.logger` of a parsed configuration: one, a list, or none.
        run: what `wandb.init` is told of the run: its `name`, its `group`, and what else there is to say.

    Raises:
        UserError: a tracker whose package is not installed.
    """
    for logger in loggers if isinstance(loggers, list) else [loggers]:
        kind = logger.class_path.rpartition(".")[2] if isinstance(logger, Namespace) else None
        if kind in WANDB and find_spec("wandb") is None:
            raise UserError(f"--trainer.logger {kind} needs W&B: pip install 'levelfield[wandb]'")
        if kind in TENSORBOARD and not any(map(find_spec, ("tensorboard", "tensorboardX"))):
            raise UserError(f"--trainer.logger {kind} needs TensorBoard: pip install 'levelfield[tensorboard]'")
        if kind in WANDB:
            logger.init_args.save_dir = str(folder)
            logger.init_args.name = run["name"]
            told = {key: value for key, value in run.items() if key not in ("name", "settings")}
            usual = {"settings": run["settings"]} if "settings" in run else {}
            logger.dict_kwargs = {**usual, **(logger.get("dict_kwargs") or {}), **told}
        if kind in TENSORBOARD:
            logger.init_args.save_dir, logger.init_args.name, logger.init_args.version = str(folder), "", ""
