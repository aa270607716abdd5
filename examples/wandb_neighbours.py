"""Logs a table of neighbours with their images, and the best checkpoint, to W&B, also offline.

In a study it is a setting of each row: give it from the start.

cd examples
levelfield fit --config data/glyphs.yaml --config logger/wandb.yaml --model.loss MultiSimilarityLoss \
  --trainer.callbacks+ wandb_neighbours.WandbNeighbours --trainer.callbacks.queries 20
"""

from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import WandbLogger

from levelfield.core.errors import UserError, refuse_below
from levelfield.data.datamodule import MetricDataModule
from levelfield.metrics import retrieval_metrics
from levelfield.metrics.definitions import SELECTED_BY
from levelfield.metrics.distances import DISTANCES
from levelfield.metrics.nearest import nearest
from levelfield.training.callbacks.retrieval_validation import best_checkpoints
from levelfield.training.embed import embed

NEIGHBOURS = 5


class WandbNeighbours(Callback):
    """Logs the table `val/neighbours` and the artifact `best.ckpt` to W&B when a fit ends; does nothing without W&B.

    For the table, the last weights embed the validation fold again. Lightning's `log_model` rejects an offline run.

    Args:
        queries: Rows of the table, evenly spaced from the query with the worst MAP@R to the best; 0 for no table.
        checkpoint: Whether W&B keeps `best.ckpt`.

    Raises:
        UserError: The data are not a `MetricDataModule`; the table needs its samples.
    """

    def __init__(self, queries: int = 20, checkpoint: bool = True) -> None:
        refuse_below(0, "trainer.callbacks", queries=queries)
        self.queries, self.checkpoint = queries, checkpoint

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        data = getattr(trainer, "datamodule", None)
        if self.queries and _runs(trainer) and not isinstance(data, MetricDataModule):
            raise UserError("WandbNeighbours shows samples of a MetricDataModule: give it queries=0 with your own data")

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        data: Any = getattr(trainer, "datamodule", None)
        for logger in _runs(trainer):
            if self.queries and data.val_subset:
                # Lightning has moved the module to the CPU.
                columns, rows = self._neighbours(pl_module, data, trainer.strategy.root_device)
                logger.log_table("val/neighbours", columns, rows, step=max(trainer.global_step - 1, 0))
            # Without validation, the last callback kept the last epoch.
            kept = [*best_checkpoints(trainer), *trainer.checkpoint_callbacks[-1:]]
            if self.checkpoint and kept and (best := getattr(kept[0], "best_model_path", "")):
                import wandb

                artifact = wandb.Artifact(f"best-{logger.experiment.id}", type="model")
                artifact.add_file(best, name="best.ckpt")
                logger.experiment.log_artifact(artifact, aliases=["best"])

    def _neighbours(
        self, module: LightningModule, data: Any, device: torch.device | str
    ) -> tuple[list[str], list[Any]]:
        """Columns and rows: a query, its MAP@R, and its nearest neighbours, right or wrong."""
        import wandb

        subset, distance = data.val_subset, getattr(module, "distance", "cosine")
        embedded = embed(module, data.eval_dataloader(subset, divided=False), device)
        embeddings, labels, index = (part.to(device) for part in embedded)
        found = retrieval_metrics(embeddings, labels, metrics=(SELECTED_BY,), distance=distance, per_query=True)
        scores = torch.as_tensor(found[SELECTED_BY])
        order = scores.argsort()[: int(scores.isfinite().sum())]  # NaN, a query without a match, is last
        chosen = torch.linspace(0, len(order) - 1, min(self.queries, len(order)), device=order.device)
        queries = order[chosen.round().long()]
        prepare, similarity = DISTANCES[distance]
        points = prepare(embeddings)
        near = nearest(points[queries], points, NEIGHBOURS, queries, similarity)[1]

        def shown(number: int, mark: str = "") -> Any:
            """An image with its class, or a text after it."""
            row = int(np.searchsorted(subset.positions, int(index[number])))
            caption, sample = mark + subset.class_names[subset.labels[row]], subset.dataset.load(subset.index.keys[row])
            return f"{caption}: {sample}" if isinstance(sample, str) else wandb.Image(sample, caption=caption)

        rows = []
        for query, others in zip(queries.tolist(), near.tolist(), strict=True):
            marks = ["right: " if labels[other] == labels[query] else "wrong: " for other in others]
            rows.append([shown(query), float(scores[query]), *map(shown, others, marks)])
        return ["query", SELECTED_BY, *(f"neighbour {rank + 1}" for rank in range(near.shape[1]))], rows


def _runs(trainer: Trainer) -> list[WandbLogger]:
    return [each for each in trainer.loggers if isinstance(each, WandbLogger) and trainer.is_global_zero]
