"""What a training says of itself to W&B, TensorBoard and other trackers beside its loss and scores."""

import time
from collections.abc import Iterable, Sized
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger, Logger, WandbLogger
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from levelfield.errors import refuse_below
from levelfield.metrics import embedding_health
from levelfield.metrics.table import SHOWN_METRICS
from levelfield.training.active_pairs import active_pairs, mined_pairs
from levelfield.training.batches import Batch
from levelfield.training.callbacks.retrieval_validation import embeddings_of, embeds_some, monitor_of, only
from levelfield.training.neighbour_gallery import neighbour_gallery

# Validation samples, and rows of class weights, that the statistics are taken of: more say the same.
MOST_SAMPLES, MOST_ROWS = 20_000, 1_000
HEALTH = ("intra_class_similarity", "inter_class_similarity", "effective_rank")


class TrackTraining(Callback):
    """Logs statistics of the training to the Trainer's trackers, and no `metrics.csv` (docs/tracking.md has them).

    Nothing of the training changes by it. Of several processes the first one's share of the validation is looked at.

    Args:
        every_n_steps: how often; the first step is among them.
        galleries: queries of the last validation whose nearest neighbours go to W&B as a table, worst to best.
        checkpoint: whether W&B keeps `best.ckpt`, as an artifact.
    """

    def __init__(self, every_n_steps: int = 50, galleries: int = 0, checkpoint: bool = False) -> None:
        refuse_below(1, "trainer.callbacks", every_n_steps=every_n_steps)
        refuse_below(0, "trainer.callbacks", galleries=galleries)
        self.every_n_steps = every_n_steps
        self.galleries = galleries
        self.checkpoint = checkpoint
        self._trackers: list[Logger] = []
        self._listens = False
        self._hooks: list[RemovableHandle] = []
        self._seen: dict[str, Any] = {}
        self._first_rows: list[tuple[Tensor, Tensor]] = []
        self._batches = 0
        self._since: float | None = None
        self._validated: list[tuple[Tensor, Tensor, Tensor]] = []

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._trackers = [logger for logger in trainer.loggers if not isinstance(logger, CSVLogger)]
        for run in self._wandb_runs():
            monitor = monitor_of(trainer.callbacks)  # type: ignore[attr-defined]
            for score in dict.fromkeys([*(f"val/{metric}" for metric in SHOWN_METRICS), monitor]):
                run.define_metric(score, step_metric="trainer/global_step", summary="max")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._since, self._batches = None, 0
        if self._trackers and isinstance(loss := getattr(pl_module, "loss", None), nn.Module):
            weights = [weight for weight in loss.parameters() if weight.requires_grad and weight.ndim > 1]
            self._first_rows = [(weight, _some_rows(weight).clone()) for weight in weights]

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        # Of the batches whose gradients make one step the last one is told of.
        if self._trackers and not self._listens and trainer.global_step % self.every_n_steps == 0:
            self._listens = True
            self._listen(pl_module)

    def _listen(self, learner: Any) -> None:
        """Look at what the learner gives its loss: on several processes the loss itself may not be called."""
        for part in ("miner", "embedder"):
            if isinstance(module := getattr(learner, part, None), nn.Module):
                self._hooks.append(module.register_forward_hook(getattr(self, f"_see_{part}")))
        compute_loss = getattr(learner, "compute_loss", None)
        if compute_loss is None:
            return

        def seen(embeddings: Tensor, labels: Tensor) -> Tensor:
            embeddings = embeddings.view_as(embeddings)  # whose slope is the loss' alone, no regularizer's
            self._see_batch(embeddings, labels)
            return compute_loss(embeddings, labels)

        learner.compute_loss = seen  # of this learner, for this step

    def _see_batch(self, embeddings: Tensor, labels: Tensor) -> None:
        self._seen |= {"embeddings": embeddings.detach(), "labels": labels}
        if embeddings.requires_grad:
            embeddings.register_hook(self._see_slope)

    def _see_miner(self, miner: nn.Module, given: Any, chosen: Any) -> None:
        self._seen["chosen"] = chosen

    def _see_slope(self, slope: Tensor) -> None:
        self._seen["active_samples"] = (slope != 0).any(1).float().mean()

    def _see_embedder(self, embedder: nn.Module, given: Any, embeddings: Tensor) -> None:
        self._seen["norms"] = embeddings.detach().float().norm(dim=1)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        if self._listens:
            groups = {group.get("name", str(number)): group for number, group in enumerate(optimizer.param_groups)}
            self._seen["rates"] = {f"lr/{name}": float(group["lr"]) for name, group in groups.items()}
            self._seen["norms_of_gradients"] = {
                f"grad_norm/{name}": _norm(each.grad for each in group["params"] if each.grad is not None)
                for name, group in groups.items()
            }

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any) -> None:
        self._batches += 1
        if "rates" not in self._seen:
            return
        seen, self._seen = {**self._seen, "loss": getattr(pl_module, "loss", None)}, {}
        self._stop_listening(pl_module)
        found = {**seen["norms_of_gradients"], **{f"train/{name}": value for name, value in _of_batch(seen).items()}}
        if self._first_rows:
            found["train/class_weight_drift"] = _drift(self._first_rows)
        values = [value.detach().to(pl_module.device, torch.float32) for value in found.values()]
        numbers = torch.stack(values).tolist()  # a GPU is waited for once
        told = {**seen["rates"], **dict(zip(found, numbers, strict=True))}
        now = time.perf_counter()
        if self._since is not None and "labels" in seen:
            told["train/samples_per_second"] = self._batches * len(seen["labels"]) / (now - self._since)
        self._since, self._batches = now, 0
        self._tell(trainer, told)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._validation_began = time.perf_counter()
        self._validated = []

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *args: Any
    ) -> None:
        if not self._trackers or embeds_some(trainer):
            return
        _, labels, index, *_ = Batch.read(batch)
        if index is not None:
            kept = index % _stride(trainer.val_dataloaders) == 0
            self._validated.append((embeddings_of(outputs)[kept], labels[kept], index[kept]))

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self._validated:
            return
        embeddings, labels, _ = self._fold()
        if 1 < len(labels.unique()) < len(labels) and torch.isfinite(embeddings).all():
            health = embedding_health(embeddings, labels)
            self._tell(trainer, {f"val/{name}": getattr(health, name) for name in HEALTH})

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._since is not None:
            self._since += time.perf_counter() - self._validation_began

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._stop_listening(pl_module)
        for logger in self._trackers:
            if isinstance(logger, WandbLogger) and trainer.is_global_zero:
                self._keep(logger, trainer, pl_module)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._stop_listening(pl_module)

    def _keep(self, logger: WandbLogger, trainer: Trainer, pl_module: LightningModule) -> None:
        """What W&B keeps of a training that has ended, on request."""
        import wandb

        if self.galleries and self._validated:
            data = getattr(trainer, "datamodule", None)
            distance = getattr(pl_module, "distance", "cosine")
            columns, rows = neighbour_gallery(*self._fold(), data, self.galleries, distance)
            logger.log_table("val/neighbours", columns, rows, step=_step(trainer))
        best = getattr(trainer.checkpoint_callback, "best_model_path", "")
        if self.checkpoint and best:
            artifact = wandb.Artifact(f"best-{logger.experiment.id}", type="model")
            artifact.add_file(best, name="best.ckpt")
            logger.experiment.log_artifact(artifact, aliases=["best"])

    def _fold(self) -> tuple[Tensor, Tensor, Tensor]:
        """Embeddings, labels and positions of the validation samples that were kept."""
        embeddings, labels, index = (torch.cat(part) for part in zip(*self._validated, strict=True))
        return embeddings, labels, index

    def _tell(self, trainer: Trainer, numbers: dict[str, float]) -> None:
        for logger in self._trackers:
            logger.log_metrics(numbers, step=_step(trainer))

    def _wandb_runs(self) -> list[Any]:
        return [logger.experiment for logger in self._trackers if isinstance(logger, WandbLogger)]

    def _stop_listening(self, learner: Any) -> None:
        vars(learner).pop("compute_loss", None)
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._listens = [], False


def _of_batch(seen: dict[str, Any]) -> dict[str, Tensor]:
    """Statistics of the batch that the loss saw."""
    found = {}
    if "norms" in seen:
        found = {"embedding_norm_mean": seen["norms"].mean(), "embedding_norm_std": seen["norms"].std()}
    if "active_samples" in seen:
        found["active_samples"] = seen["active_samples"]
    if "embeddings" not in seen:
        return found
    embeddings_ND, labels_N, chosen = seen["embeddings"].float(), seen["labels"], seen.get("chosen")
    units_ND = normalize(embeddings_ND)
    sim_NN = units_ND @ units_ND.T
    same_NN = labels_N[:, None] == labels_N
    alike, pairs = same_NN.sum(), sim_NN.numel()
    own, near = sim_NN.diagonal().sum(), (sim_NN * same_NN).sum()
    return {
        **found,
        "intra_class_similarity": (near - own) / (alike - len(labels_N)),
        "inter_class_similarity": (sim_NN.sum() - near) / (pairs - alike),
        **active_pairs(seen["loss"], embeddings_ND, labels_N, chosen),
        **mined_pairs(labels_N, chosen),
    }


def _norm(gradients: Iterable[Tensor]) -> Tensor:
    """The length of all gradients as one vector; of what is shared out over processes, the whole."""
    squares = []
    for gradient in gradients:
        values = gradient.coalesce().values() if gradient.is_sparse else gradient
        square = values.detach().float().square().sum()
        squares.append(square.full_tensor() if hasattr(square, "full_tensor") else square)
    return torch.stack(squares).sum().sqrt() if squares else torch.zeros(())


def _some_rows(weight: Tensor) -> Tensor:
    rows = weight.detach()
    rows = rows.to_local() if hasattr(rows, "to_local") else rows
    return rows[:: -(-len(rows) // MOST_ROWS)]


def _drift(first: list[tuple[Tensor, Tensor]]) -> Tensor:
    """How far weights are from where they were when the training began, by their length then."""
    moved = sum((_some_rows(weight).to(then) - then).square().sum() for weight, then in first)
    return torch.as_tensor(moved / sum(then.square().sum() for _, then in first)).sqrt()


def _step(trainer: Trainer) -> int:
    """The number of the step that was done last, from 0, as Lightning's own logs count."""
    return max(trainer.global_step - 1, 0)


def _stride(loaders: Any) -> int:
    """Every how many of the validation samples are looked at; all where the loader does not tell their number."""
    samples = getattr(only(loaders), "dataset", None)
    return max(-(-len(samples) // MOST_SAMPLES), 1) if isinstance(samples, Sized) else 1
