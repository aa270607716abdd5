"""W&B and TensorBoard: their folder, and the names of runs."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from levelfield.core.configuration import as_list

WANDB, TENSORBOARD = "WandbLogger", "TensorBoardLogger"
# A study has hundreds of short W&B runs. They print nothing and do not measure the machine (4% of a head's step).
QUIET = {"silent": True, "console": "off", "x_disable_stats": True, "x_disable_machine_info": True}


def place_trackers(loggers: Any, folder: Path, run: Mapping[str, Any]) -> None:
    """Set the folder of a configuration's trackers before they are built, and what the user left out.

    A W&B run that a stopped fit began in the folder is continued.

    Args:
        loggers: `trainer.logger` of a parsed configuration: one, a list, or none.
        run: Arguments for `wandb.init`: the run's `name`, its `group`, and more. An `id` replaces the user's.
    """
    for logger in as_list(loggers):
        kind = str(getattr(logger, "class_path", "")).rpartition(".")[2]
        if kind not in (WANDB, TENSORBOARD):
            continue
        settings = logger.init_args
        settings.save_dir = str(folder)
        if kind == WANDB:
            begun = sorted(path.name.partition("run-")[2] for path in folder.glob("wandb/*run-*"))  # TIME-ID
            ours = {"id": begun[-1].partition("-")[2] if begun else None, "resume": "allow", **run}
            if "id" in run:
                settings.id, settings.version = run["id"], None
            further = logger.get("dict_kwargs") or {}  # what the parser does not know of `wandb.init`
            logger.dict_kwargs = {**further, **left_out({**vars(settings), **further}, ours)}
        else:
            settings.name = "" if settings.name == "lightning_logs" else settings.name  # Lightning's default
            settings.version = "" if settings.version is None else settings.version


def left_out(given: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `run` that a user gave neither to the logger nor as a variable, such as WANDB_RUN_GROUP."""
    variables = {key: f"WANDB_{'RUN_' * (key in ('id', 'group'))}{key.upper()}" for key in run}
    return {key: run[key] for key in run if given.get(key) is None and variables[key] not in os.environ}
