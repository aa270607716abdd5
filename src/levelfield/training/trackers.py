"""Where the trackers of a configuration write, and what a run is called there."""

from pathlib import Path
from typing import Any

from jsonargparse import Namespace


def place_trackers(loggers: Any, folder: Path, name: str, group: str) -> None:
    """Puts the trackers of a configuration, before they are built, into a run's folder.

    Args:
        loggers: `trainer.logger` of a parsed configuration: one, a list, or none.
        group: of runs in W&B: the study, or the fits of one name.
    """
    for logger in loggers if isinstance(loggers, list) else [loggers]:
        kind = logger.class_path.rpartition(".")[2] if isinstance(logger, Namespace) else None
        if kind == "WandbLogger":
            logger.init_args.save_dir = str(folder)
            logger.init_args.name = name
            logger.dict_kwargs = {**(logger.get("dict_kwargs") or {}), "group": group}
        if kind == "TensorBoardLogger":
            logger.init_args.save_dir, logger.init_args.name, logger.init_args.version = str(folder), "", ""
