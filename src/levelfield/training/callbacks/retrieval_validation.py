"""Score the held-out classes by retrieval at each validation and test."""

from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from lightning.fabric.utilities.data import sized_len
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.utils.data import DistributedSampler

from levelfield.errors import TrainingFailed, UserError
from levelfield.metrics import RetrievalMetrics
from levelfield.metrics.distances import unpack_signs
from levelfield.metrics.health import effective_rank
from levelfield.metrics.own import is_own, own_metric
from levelfield.metrics.table import COLLAPSED_RANK, MONITOR, SELECTED_BY, SHOWN_METRICS, can_select
from levelfield.training.batches import Batch

# Number of embeddings in the check for a collapse.
LOOKED_AT = 512


class RetrievalValidation(Callback):
    """Logs `val/map_at_r` (and `test/...`) from all embeddings of the fold, from all processes.

    Each process scores its share of the queries, and all get the same scores (`levelfield.metrics.RetrievalMetrics`).
    Test samples with roles are scored query against gallery. The learner sets the distance, the Trainer's
    `check_val_every_n_epoch` the interval. A score needs all samples, so Lightning's sanity check and `fast_dev_run`
    score nothing. The callback warns once if the embeddings have collapsed: an effective rank below 1.5.

    Args:
        metrics: names of `levelfield.metrics.retrieval_metrics`, or your own function of all embeddings and labels,
            `my_metric.hubness` (docs/metrics.md).
        val_queries: validate with this many random queries, the same at each epoch and for all methods. It also logs
            half the width of the 95% interval over the draw of the queries, as `val/map_at_r_ci95`. Test scores use all
            samples. None takes all.
        selected_by: the score that selects the best epoch; the largest is best.

    Raises:
        TrainingFailed: an embedding that is not finite, on every process.
        UserError: the Trainer leaves samples out, several processes share a loader without index, or your own metric is
            missing or returns no finite number.
    """

    def __init__(
        self,
        metrics: tuple[str, ...] = tuple(SHOWN_METRICS),
        val_queries: int | None = None,
        selected_by: str = SELECTED_BY,
    ) -> None:
        if val_queries is not None and val_queries < 2:
            raise UserError(f"val_queries is {val_queries}: give 2 or more, for their interval")
        if not can_select(selected_by):
            raise UserError(f"selected_by is {selected_by}: give a retrieval score such as map, or your own metric")
        self.selected_by = selected_by
        self.metrics = tuple(metrics) if selected_by in metrics else (*metrics, selected_by)
        for name in filter(is_own, self.metrics):
            own_metric(name)  # fails before an epoch is trained
        self.val_queries = val_queries
        self._scores: RetrievalMetrics | None = None
        self._seen = 0
        self._is_finite = True
        self._has_warned = False

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        _refuse_a_part(trainer, trainer.val_dataloaders, trainer.num_val_batches, "val")

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        _refuse_a_part(trainer, trainer.test_dataloaders, trainer.num_test_batches, "test")

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start(trainer, pl_module, only(trainer.val_dataloaders), num_queries=self.val_queries)

    def on_test_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        loader = only(trainer.test_dataloaders)
        self._start(trainer, pl_module, loader, _is_query(getattr(loader, "dataset", None)))

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._end(trainer, pl_module, "val")

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._end(trainer, pl_module, "test")

    def _start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        loader: Any,
        is_query: Bool[np.ndarray, " samples"] | None = None,
        num_queries: int | None = None,
    ) -> None:
        self._scores = None
        if embeds_some(trainer):
            return
        self._seen, self._is_finite = 0, True
        self._scores = RetrievalMetrics(
            metrics=self.metrics,
            num_samples=_num_samples(loader),
            distance=getattr(pl_module, "distance", "cosine"),
            is_query=is_query,
            num_queries=num_queries,
        ).to(pl_module.device)

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if self._scores is None:
            return
        _, labels, index, *_ = Batch.read(batch)
        embeddings = embeddings_of(outputs)
        if index is None:
            if trainer.world_size > 1:
                raise UserError(
                    "the loader yields (samples, labels): where several processes share it, some samples come twice "
                    "and count once, so yield (samples, labels, index) with index the position in the data set"
                )
            index = torch.arange(self._seen, self._seen + len(labels), device=labels.device)
        self._seen += len(labels)
        if not torch.isfinite(embeddings).all():
            self._is_finite = False  # raised at the end of the epoch: no process leaves while others wait for it
            return
        self._scores.update(embeddings, labels, index)

    on_validation_batch_end = on_test_batch_end

    def _end(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self._scores is None:
            return
        if not trainer.strategy.reduce_boolean_decision(self._is_finite, all=True):
            raise TrainingFailed(
                "the embeddings are not finite: lower the learning rates (--model.trunk_lr, --model.embedder_lr)"
            )
        self._warn_of_collapse(trainer, self._scores.embeddings, stage)
        scores = self._scores.compute()
        del scores["num_skipped"]
        for name, value in scores.items():
            # All processes have the same number. Its maximum is exact; a mean may round.
            pl_module.log(
                f"{stage}/{name}", float(value), prog_bar=name == self.selected_by, sync_dist=True, reduce_fx="max"
            )
        self._scores = None

    def _warn_of_collapse(self, trainer: Trainer, embeddings: list[Tensor], stage: str) -> None:
        """Check evenly spaced embeddings of the first process, because a class's samples may be adjacent."""
        if self._has_warned or not trainer.is_global_zero or not embeddings:
            return
        rows = torch.cat(embeddings)
        rows = rows[:: -(-len(rows) // LOOKED_AT)].cpu()
        rank = effective_rank(unpack_signs(rows) if rows.dtype == torch.uint8 else rows)
        if rank < COLLAPSED_RANK and len(rows) > 1:
            self._has_warned = True
            rank_zero_warn(
                f"the {stage} embeddings have collapsed: nearly all lie on one line (effective rank {rank:.2f})",
                category=UserWarning,
            )


def embeddings_of(outputs: Any) -> Tensor:
    """The embeddings (N, D) that a validation step returned, perhaps in a mapping.

    Raises:
        UserError: it returned something else.
    """
    found = outputs.get("embeddings") if isinstance(outputs, Mapping) else outputs
    if isinstance(found, Tensor) and found.ndim == 2:
        return found
    shape = f" of shape {tuple(found.shape)}" if isinstance(found, Tensor) else ""
    raise UserError(
        f"validation_step returned a {type(outputs).__name__}{shape}: let it return the embeddings (N, D) of its "
        "batch, or a dictionary with 'embeddings'"
    )


def monitor_of(callbacks: Iterable[Callback]) -> str:
    """The logged score that selects the best epoch, such as `val/map_at_r`."""
    found = (each.selected_by for each in callbacks if isinstance(each, RetrievalValidation))
    return next((f"val/{name}" for name in found), MONITOR)


def embeds_some(trainer: Trainer) -> bool:
    """Whether this is only a check of some batches by Lightning."""
    return trainer.sanity_checking or bool(trainer.fast_dev_run)  # type: ignore[attr-defined]


def _refuse_a_part(trainer: Trainer, loaders: Any, num_batches: Any, stage: str) -> None:
    there, planned = sized_len(only(loaders)), only(num_batches)
    if there is not None and planned < there and not embeds_some(trainer):
        raise UserError(
            f"limit_{stage}_batches leaves {there - planned} of {there} batches out, and retrieval is scored among all "
            "samples: give 1.0, or 0 for no scores"
        )


def only(loaders: Any) -> Any:
    """The loader (or its number of batches), which may be inside a collection."""
    if isinstance(loaders, Mapping):
        loaders = list(loaders.values())
    return loaders[0] if isinstance(loaders, Sequence) else loaders


def _is_query(samples: Any) -> Bool[np.ndarray, " samples"] | None:
    """Which samples are queries, by position in the data set."""
    of_subset, positions = getattr(samples, "is_query", None), getattr(samples, "positions", None)
    if of_subset is None or positions is None:
        return of_subset
    found = np.zeros(positions.max(initial=-1) + 1, dtype=bool)
    found[positions] = of_subset
    return found


def _num_samples(loader: Any) -> int | None:
    """Number of different samples of a loader, if its sampler knows it."""
    sampler = getattr(loader, "sampler", None)
    samples = getattr(sampler, "dataset", None) if isinstance(sampler, DistributedSampler) else None
    samples = getattr(sampler, "data_source", samples)
    return len(samples) if isinstance(samples, Sized) else None
