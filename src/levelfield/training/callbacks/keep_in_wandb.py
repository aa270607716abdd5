"""Keeps neighbours of the last validation and the best checkpoint in W&B, also offline."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import WandbLogger
from torch import Tensor

from levelfield.data.datamodule import MetricDataModule
from levelfield.data.subset import ClassSubset
from levelfield.errors import UserError, refuse_below
from levelfield.metrics import retrieval_metrics
from levelfield.metrics.distances import DISTANCES
from levelfield.metrics.nearest import nearest
from levelfield.metrics.table import SELECTED_BY
from levelfield.training.batches import Batch
from levelfield.training.callbacks.retrieval_validation import embeddings_of, embeds_some

NEIGHBOURS = 5


class KeepInWandb(Callback):
    """Logs the table `val/neighbours` and the artifact `best.ckpt` to W&B when a fit ends; nothing without W&B.

    On several processes the table shows the first one's share of the validation samples.

    Args:
        queries: Rows of the table, evenly spaced from the query with the worst MAP@R to the best; 0 for no table.
        checkpoint: Whether W&B keeps `best.ckpt`.

    Raises:
        UserError: The data are no `MetricDataModule`, whose samples a table can show.
    """

    def __init__(self, queries: int = 20, checkpoint: bool = True) -> None:
        refuse_below(0, "trainer.callbacks", queries=queries)
        self.queries, self.checkpoint = queries, checkpoint
        self._loggers: list[WandbLogger] = []
        self._validated: list[tuple[Tensor, Tensor, Tensor]] = []

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        loggers = trainer.loggers if trainer.is_global_zero else []
        self._loggers = [logger for logger in loggers if isinstance(logger, WandbLogger)]
        data = getattr(trainer, "datamodule", None)
        if self._loggers and self.queries and not isinstance(data, MetricDataModule):
            raise UserError("KeepInWandb shows samples of a MetricDataModule: give it queries=0 with your own data")

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._validated = []

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *_: Any
    ) -> None:
        if self._loggers and self.queries and not embeds_some(trainer):
            read = Batch.read(batch)
            assert read.index is not None
            self._validated.append((embeddings_of(outputs).float(), read.labels, read.index))

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        best = getattr(trainer.checkpoint_callback, "best_model_path", "")
        for logger in self._loggers:
            if self._validated:
                data: MetricDataModule = trainer.datamodule  # type: ignore[attr-defined]
                assert data.val_subset is not None
                columns, rows = self._neighbours(data.val_subset, getattr(pl_module, "distance", "cosine"))
                logger.log_table("val/neighbours", columns, rows, step=max(trainer.global_step - 1, 0))
            if self.checkpoint and best:
                import wandb

                artifact = wandb.Artifact(f"best-{logger.experiment.id}", type="model")
                artifact.add_file(best, name="best.ckpt")
                logger.experiment.log_artifact(artifact, aliases=["best"])

    def _neighbours(self, subset: ClassSubset, distance: str) -> tuple[list[str], list[list[Any]]]:
        """Columns and rows of the table: a query, its MAP@R, and its nearest neighbours, right or wrong."""
        embeddings, labels, index = (torch.cat(part) for part in zip(*self._validated, strict=True))
        found = retrieval_metrics(embeddings, labels, metrics=(SELECTED_BY,), distance=distance, per_query=True)
        scores: Float[Tensor, " N"] = torch.as_tensor(found[SELECTED_BY])
        order = scores.argsort()[: int(scores.isfinite().sum())]  # NaN, a query without a match, is last
        places = torch.linspace(0, len(order) - 1, min(self.queries, len(order))).round().long()
        queries: Int[Tensor, " Q"] = order[places.to(order.device)].to(embeddings.device)
        held, similarity = DISTANCES[distance]
        points = held(embeddings)
        _, near = nearest(points[queries], points, NEIGHBOURS, queries, similarity)
        rows = [
            [
                _shown(subset, index[query]),
                float(scores[query]),
                *(_shown(subset, index[other], bool(labels[other] == labels[query])) for other in others),
            ]
            for query, others in zip(queries.tolist(), near.tolist(), strict=True)
        ]
        return ["query", SELECTED_BY, *(f"neighbour {place + 1}" for place in range(near.shape[1]))], rows


def _shown(subset: ClassSubset, position: Tensor, is_right: bool | None = None) -> Any:
    """An image with its class, or a text after it."""
    import wandb

    row = int(np.searchsorted(subset.positions, int(position)))
    caption = {None: "", True: "right: ", False: "wrong: "}[is_right] + subset.class_names[subset.labels[row]]
    sample = subset.dataset.load(subset.index.keys[row])
    return f"{caption}: {sample}" if isinstance(sample, str) else wandb.Image(sample, caption=caption)
