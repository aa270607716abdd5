"""Where the trackers of a configuration write, what a run is called there, and how W&B is told."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import rank_zero_only

# Of W&B, for runs of which there are hundreds: it prints nothing, and keeps nothing of what is printed.
QUIET = {"silent": True, "console": "off"}
# How long what is told may wait for more: to wake W&B's thread and its process costs six times what a row does.
LONGEST_WAIT = 5.0


class BatchedWandbLogger(WandbLogger):
    """Lightning's `WandbLogger`, which sends the numbers of some seconds together, each with the time that it is of.

    Whoever asks for `experiment`, to log by it or to finish it, finds all numbers sent.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._waiting: list[tuple[dict[str, float], int | None]] = []
        self._since = 0.0

    @property
    def experiment(self) -> Any:
        run = super().experiment
        waiting, self._waiting = self._waiting, []
        for metrics, step in waiting:
            super().log_metrics(metrics, step)
        return run

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        now = time.time()
        self._since = self._since if self._waiting else now
        # W&B's own key of a row, which a prefix would make another
        self._waiting.append(({**metrics, **({} if self._prefix else {"_timestamp": now})}, step))
        if now - self._since >= LONGEST_WAIT:
            _ = self.experiment


def place_trackers(loggers: Any, folder: Path, run: Mapping[str, Any]) -> None:
    """Puts the trackers of a configuration, before they are built, into a run's folder.

    Args:
        loggers: `trainer.logger` of a parsed configuration: one, a list, or none.
        run: what `wandb.init` is told of the run: its `name`, its `group`, and what else there is to say.
    """
    for logger in loggers if isinstance(loggers, list) else [loggers]:
        kind = logger.class_path.rpartition(".")[2] if isinstance(logger, Namespace) else None
        if kind in ("WandbLogger", "BatchedWandbLogger"):
            logger.init_args.save_dir = str(folder)
            logger.init_args.name = run["name"]
            told = {key: value for key, value in run.items() if key not in ("name", "settings")}
            usual = {"settings": run["settings"]} if "settings" in run else {}
            logger.dict_kwargs = {**usual, **(logger.get("dict_kwargs") or {}), **told}
        if kind == "TensorBoardLogger":
            logger.init_args.save_dir, logger.init_args.name, logger.init_args.version = str(folder), "", ""
