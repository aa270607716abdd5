"""Score the held-out classes by retrieval at each validation and test, and keep the best epoch."""

import math
from collections.abc import Iterable, Mapping, Sized
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from jaxtyping import Shaped
from lightning.fabric.utilities.data import sized_len
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.utilities import CombinedLoader, rank_zero_warn
from torch import Tensor
from torch.utils.data import DistributedSampler

from levelfield.core.errors import TrainingFailed, UserError
from levelfield.data.splits import NO_FOLD
from levelfield.metrics import RetrievalMetrics
from levelfield.metrics.definitions import COLLAPSED_RANK, SELECTED_BY, SHOWN_METRICS, can_select, is_user_metric
from levelfield.metrics.distances import unpack_signs
from levelfield.metrics.distributed import NotFinite
from levelfield.metrics.health import effective_rank
from levelfield.metrics.user_metric import user_metric
from levelfield.training.batches import Batch
from levelfield.training.weight_averaging import averages, follow_until_first_update

# Number of embeddings in the check for a collapse.
LOOKED_AT = 512


class RetrievalValidation(Callback):
    """Logs `val/map_at_r` (and `test/...`) from all embeddings of the fold, from all processes.

    Each process scores its share of the queries, and all get the same scores (`levelfield.metrics.RetrievalMetrics`).
    Each loader is scored alone. The first selects the best epoch; the scores of the next are
    `val/map_at_r/dataloader_idx_1`. Test samples with roles are scored query against gallery. The learner sets the
    distance, the Trainer's `check_val_every_n_epoch` the interval. A score needs all samples, so Lightning's sanity
    check and `fast_dev_run` score nothing. Evaluation is in float32 also in a fit with `bf16-mixed` or `16-mixed`. The
    callback warns once if the embeddings have collapsed: an effective rank below 1.5.

    Args:
        metrics: names of `levelfield.metrics.retrieval_metrics`, or your own function of all embeddings and labels,
            `my_metric.hubness` (docs/metrics.md).
        selected_by: the score that selects the best epoch; the largest is best.

    Attributes:
        of_queries: for each loader of the last validation or test, the scores of its queries by metric, and their
            labels, on the learner's device; the same on every process.
        best_queries: `of_queries` of the first loader in the validation with the best `selected_by`; None before.

    Raises:
        TrainingFailed: an embedding that is not finite, on every process.
        UserError: the Trainer leaves samples out, several processes share a loader without index, or your own metric is
            missing or returns no finite number.
    """

    def __init__(self, metrics: tuple[str, ...] = tuple(SHOWN_METRICS), selected_by: str = SELECTED_BY) -> None:
        if not can_select(selected_by):
            raise UserError(f"selected_by is {selected_by}: give a retrieval score such as map, or your own metric")
        self.selected_by = selected_by
        self.metrics = tuple(metrics) if selected_by in metrics else (*metrics, selected_by)
        for name in filter(is_user_metric, self.metrics):
            user_metric(name)  # fails before an epoch is trained
        self.of_queries: list[tuple[dict[str, Tensor], Tensor]] = []
        self.best_queries: tuple[dict[str, Tensor], Tensor] | None = None
        self._highest, self._stage = -math.inf, "val"
        self._scores: list[RetrievalMetrics] = []  # of each loader
        self._outputs: list[dict[str, Any]] = []  # what Lightning returns and prints of each loader
        self._logged: list[list[str]] = []
        self._has_warned = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if isinstance(trainer.precision_plugin, MixedPrecision):  # `embed`, of baselines, is in float32
            steps = ("val_step_context", "test_step_context", "predict_step_context")
            vars(trainer.precision_plugin).update(dict.fromkeys(steps, nullcontext))
        if stage == "fit":
            self._highest, self.best_queries = -math.inf, None
            follow_until_first_update(trainer.callbacks)  # type: ignore[attr-defined]
            for each in trainer.callbacks:  # type: ignore[attr-defined]
                score = str(getattr(each, "monitor", "")).removeprefix("val/").partition("/dataloader_idx_")[0]
                is_best_if_large = score == self.selected_by or (can_select(score) and not is_user_metric(score))
                if is_best_if_large and getattr(each, "mode", "max") != "max":
                    rank_zero_warn(f"{type(each).__name__} keeps the smallest {each.monitor}: give it mode='max'")

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        for each in averages(trainer.callbacks):  # type: ignore[attr-defined]
            each._average_model = None  # the learner has it, and Lightning would test a checkpoint's other weights

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._scores = []
        if trainer.sanity_checking or trainer.fast_dev_run:  # type: ignore[attr-defined] # only some batches
            return
        self._stage = stage = "test" if trainer.testing else "val"
        loaders = CombinedLoader(getattr(trainer, f"{stage}_dataloaders")).flattened
        for loader, planned in zip(loaders, getattr(trainer, f"num_{stage}_batches"), strict=True):
            _refuse_a_part(trainer, loader, planned, stage)
            scores = RetrievalMetrics(
                metrics=self.metrics,
                num_samples=_num_samples(loader),
                distance=getattr(pl_module, "distance", "cosine"),
                is_query=_by_position(getattr(loader, "dataset", None), "is_query") if stage == "test" else None,
                groups=_by_position(getattr(loader, "dataset", None), "groups"),
            )
            self._scores.append(scores.to(pl_module.device))

    on_validation_start = on_test_start

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *loader: Any
    ) -> None:
        if not self._scores:
            return
        read, scores = Batch.read(batch), self._scores[loader[0] if loader else 0]
        labels, index = read.labels, read.index
        if index is None:
            if trainer.world_size > 1:
                raise UserError("processes share the loader: yield (samples, labels, index), the place in the data")
            seen = sum(map(len, scores.labels))
            index = torch.arange(seen, seen + len(labels), device=labels.device)
        scores.update(embeddings_of(outputs), labels, index)

    on_validation_batch_end = on_test_batch_end  # type: ignore[assignment]

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self._scores:
            return
        stage = self._stage
        self._logged, self.of_queries = [], []
        for number, metrics in enumerate(self._scores):
            try:
                scores = metrics.compute()
            except NotFinite as error:
                raise TrainingFailed(f"{error}; look there, or lower --model.trunk_lr, --model.embedder_lr") from error
            if trainer.is_global_zero and metrics.embeddings and not self._has_warned:
                self._warn_of_collapse(torch.cat(metrics.embeddings))
            del scores["num_skipped"]
            self.of_queries.append((metrics.query_scores, metrics.query_labels))
            suffix = f"/dataloader_idx_{number}" if number else ""  # as Lightning names them; the first is monitored
            named = {f"{stage}/{name}{suffix}": float(value) for name, value in scores.items()}
            for name, value in named.items():
                is_shown = name == f"{stage}/{self.selected_by}"
                # All processes have the same number. Its maximum is exact; a mean may round.
                pl_module.log(name, value, prog_bar=is_shown, sync_dist=True, reduce_fx="max", add_dataloader_idx=False)
            self._logged.append([*named])
            score = float(np.float32(scores[self.selected_by]))  # as checkpoints compare it
            if stage == "val" and number == 0 and score > self._highest:
                self._highest, self.best_queries = score, self.of_queries[0]
        self._scores = []
        self._outputs = trainer._evaluation_loop._logged_outputs

    on_validation_epoch_end = on_test_epoch_end

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave each loader's output its own scores: Lightning gives it those of all loaders, and prints the last."""
        for number, output in enumerate(self._outputs):
            for key in [key for of, keys in enumerate(self._logged) if of != number for key in keys]:
                output.pop(key, None)

    on_validation_end = on_test_end

    def _warn_of_collapse(self, rows: Tensor) -> None:
        """Check evenly spaced embeddings of the first process, because a class's samples may be adjacent."""
        rows = rows[:: -(-len(rows) // LOOKED_AT)].cpu()
        rank = effective_rank(unpack_signs(rows) if rows.dtype == torch.uint8 else rows)
        if rank < COLLAPSED_RANK and len(rows) > 1:
            self._has_warned = True
            rank_zero_warn(f"the {self._stage} embeddings have collapsed to about a line (effective rank {rank:.2f})")


class BestEpoch(Callback):
    """Lets the default checkpoint of a Trainer keep the epoch with the best `val/map_at_r`, not the last one.

    It sets the monitor of that `ModelCheckpoint`, or of one that you gave without monitor and file name. If the learner
    brought a `ModelCheckpoint`, Lightning would drop all those of the Trainer. The callback changes nothing if you gave
    another checkpoint, or if nothing is validated. `RetrievalValidation(selected_by=...)` selects another score.
    """

    def __init__(self) -> None:
        self._checkpoint: ModelCheckpoint | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        given, kept = trainer.callbacks, trainer.checkpoint_callbacks  # type: ignore[attr-defined]
        scores = trainer.enable_validation and any(isinstance(each, RetrievalValidation) for each in given)
        fold = getattr(getattr(trainer, "datamodule", None), "fold", None)
        if stage != "fit" or not scores or fold == NO_FOLD or len(kept) != 1 or type(kept[0]) is not ModelCheckpoint:
            return
        checkpoint: ModelCheckpoint = kept[0]
        # Lightning's defaults: it keeps the last epoch in one file.
        keeps_one = checkpoint.save_top_k == 1 and not checkpoint.save_last and checkpoint.filename is None
        if keeps_one and checkpoint.state_key == ModelCheckpoint().state_key:
            checkpoint.monitor, checkpoint.mode = monitor_of(given), "max"
            checkpoint.kth_value = torch.tensor(-torch.inf)
            if averages(given):  # they may change after this
                checkpoint._save_on_train_epoch_end = False
            self._checkpoint = checkpoint

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._checkpoint is None or trainer.check_val_every_n_epoch != 1:
            return
        if self._checkpoint.monitor not in trainer.callback_metrics:  # no validation before the end (`max_steps`)
            self._checkpoint.monitor = self._checkpoint._save_on_train_epoch_end = None


def best_checkpoints(trainer: Trainer) -> list[Any]:
    """The checkpoint callbacks that have stored the epoch with the best score, not others that a user gave."""
    monitor = monitor_of(trainer.callbacks)  # type: ignore[attr-defined]
    found = [each for each in trainer.checkpoint_callbacks if isinstance(each, ModelCheckpoint)]
    return [each for each in found if each.monitor == monitor and each.best_model_path]


def embeddings_of(outputs: Any) -> Tensor:
    """The embeddings (N, D) that a validation step returned, perhaps in a mapping.

    Raises:
        UserError: it returned something else.
    """
    found = outputs.get("embeddings") if isinstance(outputs, Mapping) else outputs
    if isinstance(found, Tensor) and found.ndim == 2:
        return found
    shape = f" of shape {tuple(found.shape)}" if isinstance(found, Tensor) else ""
    raise UserError(f"validation_step returned a {type(outputs).__name__}{shape}: return the embeddings (N, D)")


def monitor_of(callbacks: Iterable[Callback]) -> str:
    """The logged score that selects the best epoch, such as `val/map_at_r`."""
    found = (each.selected_by for each in callbacks if isinstance(each, RetrievalValidation))
    return f"val/{next(found, SELECTED_BY)}"


def _refuse_a_part(trainer: Any, loader: Any, planned: float, stage: str) -> None:
    there = sized_len(loader)
    if there is None or planned >= there:
        return
    limit, remedy = f"limit_{stage}_batches", "1.0, or 0 for no scores"
    if stage == "val" and trainer.overfit_batches:
        limit, remedy = "overfit_batches", "limit_train_batches instead"
    raise UserError(f"{limit} leaves {there - int(planned)} of {there} batches out, but all are scored: give {remedy}")


def _by_position(samples: Any, name: str) -> Shaped[np.ndarray, " samples"] | None:
    """Which samples are queries, or their groups, by position in the data set."""
    of_subset, positions = getattr(samples, name, None), getattr(samples, "positions", None)
    if of_subset is None or positions is None:
        return of_subset
    found = np.zeros(positions.max(initial=-1) + 1, of_subset.dtype)
    found[positions] = of_subset
    return found


def _num_samples(loader: Any) -> int | None:
    """Number of different samples of a loader, if its sampler knows it."""
    sampler = getattr(loader, "sampler", None)
    samples = getattr(sampler, "dataset" if isinstance(sampler, DistributedSampler) else "data_source", None)
    return len(samples) if isinstance(samples, Sized) else None
