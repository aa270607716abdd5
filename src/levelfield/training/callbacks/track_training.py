"""Log statistics of a training, in addition to loss and scores, to W&B, TensorBoard and other trackers."""

import time
from collections.abc import Iterable
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor
from torch.nn.functional import normalize
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from levelfield.core.errors import refuse_below
from levelfield.metrics import embedding_health
from levelfield.training.batches import Batch
from levelfield.training.callbacks.best_epoch import best_checkpoints
from levelfield.training.callbacks.retrieval_validation import embeddings_of, embeds_some
from levelfield.training.optimization import Optimization

# Number of validation samples for the statistics: more give the same numbers.
MOST_SAMPLES = 20_000
HEALTH = ("intra_class_similarity", "inter_class_similarity", "effective_rank")


class TrackTraining(Callback):
    """Logs statistics of the training (docs/tutorial_gpus.md) to each logger of the Trainer except `CSVLogger`.

    At the end it logs the best validation score, such as `best/map_at_r`. It does not change the training. The
    validation statistics are those of the first loader on the first process.

    Args:
        every_n_steps: Steps between two logs, including the first step.
    """

    def __init__(self, every_n_steps: int = 50) -> None:
        refuse_below(1, "trainer.callbacks", every_n_steps=every_n_steps)
        self.every_n_steps = every_n_steps
        self._seen: dict[str, Any] | None = None  # values of the step that is watched
        self._hooks: list[RemovableHandle] = []
        self._batches = 0
        self._since: float | None = None
        self._validated: list[tuple[Tensor, Tensor]] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._since, self._batches = None, 0

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        # If the gradients of several batches are accumulated, the last batch is logged.
        if self._seen is None and _trackers(trainer) and trainer.global_step % self.every_n_steps == 0:
            self._watch(pl_module)

    def _watch(self, learner: Any) -> None:
        """Record what the embedder returns and what `compute_loss` gets; a loss may be called without hooks."""
        seen: dict[str, Any] = {}
        self._seen = seen
        if not isinstance(getattr(learner, "optimization", None), Optimization):
            return  # a plain module, whose methods of these names are others
        self._hooks = [learner.embedder.register_forward_hook(lambda *args: seen.update(embedder=args[-1]))]
        compute_loss = learner.compute_loss

        def watched(embeddings: Tensor, labels: Tensor) -> Tensor:
            embeddings = embeddings.view_as(embeddings)  # its gradient excludes the regularizer
            seen.update(embeddings=embeddings.detach(), labels=labels)
            if embeddings.requires_grad:
                embeddings.register_hook(lambda slope: seen.update(slope=slope))
            return compute_loss(embeddings, labels)

        learner.compute_loss = watched

    def _stop_watching(self, learner: Any) -> None:
        vars(learner).pop("compute_loss", None)
        for hook in self._hooks:
            hook.remove()
        self._seen, self._hooks = None, []

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        if self._seen is not None:
            groups = {group.get("name", str(number)): group for number, group in enumerate(optimizer.param_groups)}
            self._seen["rates"] = {f"lr/{name}": float(group["lr"]) for name, group in groups.items()}
            self._seen["norms"] = {f"grad_norm/{name}": _grad_norm(group["params"]) for name, group in groups.items()}

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any) -> None:
        self._batches += 1
        seen = self._seen
        if seen is None or "rates" not in seen:
            return
        self._stop_watching(pl_module)
        found = seen["norms"] | _of_batch(seen)
        values = torch.stack([value.detach().to(pl_module.device, torch.float32) for value in found.values()])
        numbers = seen["rates"] | dict(zip(found, values.tolist(), strict=True))  # waits for a GPU once
        now = time.perf_counter()
        if self._since is not None and "labels" in seen:
            numbers["train/samples_per_second"] = self._batches * len(seen["labels"]) / (now - self._since)
        self._since, self._batches = now, 0
        _log(trainer, numbers)

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._validated = []

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if dataloader_idx == 0 and _trackers(trainer) and not embeds_some(trainer):
            self._validated.append((embeddings_of(outputs), Batch.read(batch).labels))

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._validated:
            parts = [torch.cat(part) for part in zip(*self._validated, strict=True)]
            embeddings, labels = (part[:: -(-len(part) // MOST_SAMPLES)] for part in parts)  # evenly spaced
            self._validated = []
            if 1 < len(labels.unique()) < len(labels) and torch.isfinite(embeddings).all():
                health = embedding_health(embeddings, labels)
                _log(trainer, {f"val/{name}": getattr(health, name) for name in HEALTH})

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._since, self._batches = time.perf_counter(), 0  # the speed excludes validations

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._stop_watching(pl_module)
        for kept in best_checkpoints(trainer)[:1]:
            _log(trainer, {f"best/{kept.monitor.removeprefix('val/')}": float(kept.best_model_score)})

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._stop_watching(pl_module)


def _trackers(trainer: Trainer) -> list[Any]:
    return [logger for logger in trainer.loggers if not isinstance(logger, CSVLogger)]


def _log(trainer: Trainer, numbers: dict[str, float]) -> None:
    """Log at the last finished step, counted from 0, as Lightning does."""
    for logger in _trackers(trainer):
        logger.log_metrics(numbers, step=max(trainer.global_step - 1, 0))


def _of_batch(seen: dict[str, Any]) -> dict[str, Tensor]:
    """Statistics of the batch that the loss saw."""
    found: dict[str, Tensor] = {}
    if "embedder" in seen:
        lengths = seen["embedder"].detach().float().norm(dim=1)
        found |= {"embedding_norm_mean": lengths.mean(), "embedding_norm_std": lengths.std()}
    if "slope" in seen:
        found["active_samples"] = (seen["slope"] != 0).any(1).float().mean()
    if "embeddings" in seen:
        units_ND, labels_N = normalize(seen["embeddings"].float()), seen["labels"]
        sim_NN = units_ND @ units_ND.T
        same_NN = labels_N[:, None] == labels_N
        others_NN = same_NN & ~torch.eye(len(labels_N), dtype=torch.bool, device=labels_N.device)
        found["intra_class_similarity"] = (sim_NN * others_NN).sum() / others_NN.sum()
        found["inter_class_similarity"] = (sim_NN * ~same_NN).sum() / (~same_NN).sum()
    return {f"train/{name}": value for name, value in found.items()}


def _grad_norm(weights: Iterable[Tensor]) -> Tensor:
    """The norm of all gradients as one vector."""
    norms = [weight.grad.detach().float().norm() for weight in weights if weight.grad is not None]
    return torch.stack(norms).norm() if norms else torch.zeros(())
