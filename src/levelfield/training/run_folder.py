"""The folder that a fit writes: `config.yaml`, `metrics.csv`, `best.ckpt`."""

import csv
import io
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.utilities import rank_zero_only

from levelfield.storage.atomic import make_durable, storing, write_atomically
from levelfield.storage.without_places import HERE, moved
from levelfield.training.checkpoint_content import check_callbacks
from levelfield.training.frozen_trunk import with_trunk, without_trunk


def default_name(config: Any) -> str:
    """`<data set>-<loss>`, in the words of the command line."""
    data, loss = config["data"]["dataset"]["class_path"], config["model"]["loss"]
    names = (data, loss.__name__ if callable(loss) else loss["class_path"])  # a function is there itself
    return "-".join(name.rpartition(".")[2] for name in names)


def is_first_process() -> bool:
    """Whether this process, of a run's several, is the one that writes."""
    return getattr(rank_zero_only, "rank", 0) in (0, None)


class MetricsFile(CSVLogger):
    """`metrics.csv` alone: the hyper-parameters stand in `config.yaml`."""

    def log_hyperparams(self, params: Any = None) -> None:
        pass

    def save(self) -> None:
        with storing(Path(self.log_dir, "metrics.csv")):
            super().save()

    def finalize(self, status: str) -> None:
        super().finalize(status)
        path = Path(self.log_dir, "metrics.csv")
        if is_first_process() and path.exists():
            make_durable(path)

    @property
    def text(self) -> str:
        """All rows logged so far, as they stand in the file; only the first process has one."""
        if not is_first_process():
            return ""
        self.save()
        path = Path(self.experiment.metrics_file_path)
        return path.read_bytes().decode() if path.exists() else ""

    def go_on_from(self, text: str) -> None:
        """Put back the rows of a `text`, in place of what the file holds; the next ones follow them."""
        if text and is_first_process():
            write_atomically(Path(self.experiment.metrics_file_path), text.encode())
            self.experiment.metrics_keys = next(csv.reader([text.splitlines()[0]]))


class AtomicCheckpoints(TorchCheckpointIO):
    """Checkpoints that are either whole or absent, whatever kills the process.

    Lightning's own way goes over the system's temporary folder, which is a copy where that is another file system. The
    folder that a checkpoint lies in does not stand in it.

    Args:
        trunks: where frozen trunks are kept, once; None has each checkpoint hold its own.
    """

    def __init__(self, trunks: Path | None = None) -> None:
        super().__init__()
        self.trunks = trunks

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        if "callbacks" in checkpoint:
            folder = str(Path(path).parent.resolve())
            checkpoint = {**checkpoint, "callbacks": moved(checkpoint["callbacks"], folder, HERE)}
        if self.trunks is not None:
            checkpoint = without_trunk(checkpoint, self.trunks)
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)
        write_atomically(Path(path), buffer.getvalue())

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        checkpoint = super().load_checkpoint(path, *args, **{**kwargs, "weights_only": True})
        check_callbacks(checkpoint.get("callbacks", {}), path)
        checkpoint = with_trunk(checkpoint, path)
        folder = str(Path(path).parent.resolve())
        return {**checkpoint, "callbacks": moved(checkpoint.get("callbacks", {}), HERE, folder)}


def best_checkpoint(
    folder: Path, monitor: str | None, weights_only: bool = False, averages: bool = False
) -> ModelCheckpoint:
    """Keeps `best.ckpt`, the epoch with the largest `monitor` (the first of equals); the last without validation.

    A study's jobs store weights alone, a third of the size; a fit's checkpoint holds what going on from it needs.

    Args:
        monitor: the logged score; None without validation.
        averages: whether weights are averaged. The average may move on after a validation, as the epoch ends.
    """
    return ModelCheckpoint(
        dirpath=folder,
        filename="best",
        monitor=monitor,
        mode="max",
        save_on_train_epoch_end=True if monitor is None else False if averages else None,
        save_weights_only=weights_only,
        enable_version_counter=False,
    )
