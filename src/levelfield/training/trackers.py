"""W&B and TensorBoard: their folder and the names of runs."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from levelfield.errors import UserError

WANDB, TENSORBOARD = "WandbLogger", "TensorBoardLogger"
PACKAGES = {WANDB: ["wandb"], TENSORBOARD: ["tensorboard", "tensorboardX"]}
# A study has hundreds of short W&B runs. They print nothing and do not measure the machine (4% of a head's step).
QUIET = {"silent": True, "console": "off", "x_disable_stats": True, "x_disable_machine_info": True}


def place_trackers(loggers: Any, folder: Path, run: Mapping[str, Any]) -> None:
    """Set the folder of a configuration's trackers before they are built.

    Args:
        loggers: `trainer.logger` of a parsed configuration: one, a list, or none.
        run: Arguments for `wandb.init`: the run's `name`, its `group`, and more.

    Raises:
        UserError: The package of a tracker is not installed.
    """
    for logger in loggers if isinstance(loggers, list) else [loggers]:
        kind = logger.class_path.rpartition(".")[2] if isinstance(logger, Namespace) else None
        if kind not in PACKAGES:
            continue
        if not any(map(find_spec, PACKAGES[kind])):
            extra = PACKAGES[kind][0]
            raise UserError(f"--trainer.logger {kind} needs {extra}: pip install 'levelfield[{extra}]'")
        logger.init_args.save_dir = str(folder)
        if kind == WANDB:
            logger.init_args.name = run["name"]
            others = {key: value for key, value in run.items() if key != "name"}
            logger.dict_kwargs = {**others, **(logger.get("dict_kwargs") or {})}
        else:
            logger.init_args.name, logger.init_args.version = "", ""
