"""Average the trained weights with the initial weights."""

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from levelfield.core.errors import UserError
from levelfield.core.files import write_atomically
from levelfield.training.callbacks.best_epoch import best_checkpoints
from levelfield.training.callbacks.retrieval_validation import RetrievalValidation, monitor_of
from levelfield.training.weight_averaging import averages

VALIDATED: Literal["validated"] = "validated"
CANDIDATES = (1.0, 0.75, 0.5, 0.25)  # of equal scores the first is selected: the trained weights

Weights = Mapping[str, Tensor]


def between(start: Mapping[str, Any], trained: Mapping[str, Any], alpha: float) -> dict[str, Any]:
    """`alpha * trained + (1 - alpha) * start`; other values, such as counters of batch norm, are the trained ones.

    Weights that training has not changed stay as they are; the average would round them.
    """
    mixed = dict(trained)
    for name, weight in trained.items():
        if isinstance(weight, Tensor) and weight.is_floating_point():
            one = start[name].to(weight.device)
            mixed[name] = torch.where(one == weight, weight, torch.lerp(one, weight, alpha))
    return mixed


class AverageWithStart(Callback):
    """Keeps `alpha * trained + (1 - alpha) * start` (WiSE-FT, Wortsman et al. 2022, arXiv 2109.01903).

    The average keeps knowledge of the pretrained weights about other classes and costs nothing after training. It
    covers all trained weights and the running statistics of batch norm, but not the weights of the loss: these start
    random, and embeddings do not need them. For an adapter, its two factors are averaged, not their product.

    With `validated`, the callback selects alpha at the end. It validates each candidate with the weights of the best
    epoch and writes the best average into that epoch's checkpoint. A row of `metrics.csv` has the alpha and all scores.
    With a number, each validation scores the average, which so decides patience and best epoch.

    Args:
        alpha: Share of the trained weights, above 0 and at most 1; `validated` selects 1, 0.75, 0.5 or 0.25.

    Attributes:
        chosen: The alpha of the stored weights; None before it is known.

    Raises:
        UserError: an invalid alpha, `validated` without a validation, or a second average of weights.
    """

    def __init__(self, alpha: float | Literal["validated"] = VALIDATED) -> None:
        if alpha != VALIDATED and not (isinstance(alpha, int | float) and 0 < alpha <= 1):
            raise UserError(f"AverageWithStart.alpha is {alpha}: give a number above 0 and at most 1, or {VALIDATED}")
        self.alpha = alpha
        self.chosen = None if alpha == VALIDATED else float(alpha)
        self._forget()

    def _forget(self) -> None:
        self._start: Weights | None = None
        self._trained: Weights | None = None  # while the learner holds the average
        self._best: Weights | None = None  # of the best epoch so far
        self._score, self._epoch = -torch.inf, 0

    def refuse_without_validation(self) -> None:
        """Raise UserError if a validation should select alpha."""
        if self.alpha == VALIDATED:
            raise UserError(f"AverageWithStart.alpha is {VALIDATED}, but nothing is validated: give a number")

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit" and not trainer.enable_validation:
            self.refuse_without_validation()
        if stage == "fit" and averages(trainer.callbacks):  # type: ignore[attr-defined]
            raise UserError("AverageWithStart and another average of weights: leave one of the two callbacks out")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._start is None:  # else it comes from a checkpoint
            self._start = _copy(_averaged(pl_module))

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if _fits(trainer):
            self.on_train_start(trainer, pl_module)  # `ValidateFirst` may come before this callback
            self._average(pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._average(pl_module)  # before a checkpoint of this epoch is written

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, *args: Any
    ) -> None:
        if self._trained is not None:
            self._put(pl_module, 1.0, self._trained)
            self._trained = None

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        monitor = monitor_of(trainer.callbacks)  # type: ignore[attr-defined]
        score = float(trainer.callback_metrics.get(monitor, -torch.inf))
        if self.alpha == VALIDATED and _fits(trainer) and score > self._score:
            self._best, self._score, self._epoch = _copy(_averaged(pl_module)), score, trainer.current_epoch

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._best is None:
            return
        scores = {1.0: self._score}
        for alpha in CANDIDATES[1:]:
            self._put(pl_module, alpha, self._best)
            scores[alpha] = _validate(trainer)
        self.chosen = max(scores, key=lambda alpha: scores[alpha])
        self._put(pl_module, self.chosen, self._best)
        monitor = monitor_of(trainer.callbacks)  # type: ignore[attr-defined]
        for checkpoint in best_checkpoints(trainer):
            checkpoint.best_model_score = torch.tensor(scores[self.chosen])
            if trainer.is_global_zero:
                self._replace_weights(checkpoint, pl_module)
        told: dict[str, float] = {f"{monitor}_alpha_{alpha:g}": score for alpha, score in scores.items()}
        told |= {"alpha": self.chosen, monitor: scores[self.chosen], "epoch": self._epoch}
        for logger in trainer.loggers:
            logger.log_metrics(told, step=trainer.global_step - 1)
        trainer.strategy.barrier()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._forget()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._forget()

    def state_dict(self) -> dict[str, Any]:
        best = {"best": self._best, "score": self._score, "epoch": self._epoch}
        return {"start": self._start, "trained": self._trained, **best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._start, self._trained, self._best = (state_dict[name] for name in ("start", "trained", "best"))
        self._score, self._epoch = state_dict["score"], state_dict["epoch"]

    def _average(self, learner: LightningModule) -> None:
        """If alpha is a number, put the average into the learner until its next step."""
        if self.alpha != VALIDATED and self._trained is None:
            trained = _copy(_averaged(learner))
            self._put(learner, float(self.alpha), trained)
            self._trained = trained

    def _put(self, learner: LightningModule, alpha: float, trained: Weights) -> None:
        assert self._start is not None
        mixed = between(self._start, trained, alpha)
        for name, weight in _averaged(learner).items():
            weight.copy_(mixed[name])

    def _replace_weights(self, kept: ModelCheckpoint, learner: LightningModule) -> None:
        """Put the selected average into the best epoch's checkpoint; a fit continues with the trained weights."""
        path = Path(kept.best_model_path)
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        state, states = checkpoint["state_dict"], checkpoint.get("callbacks", {})
        state |= {name: weight.cpu() for name, weight in _averaged(learner).items() if name in state}
        if kept.state_key in states:
            states[kept.state_key]["best_model_score"] = kept.best_model_score
            states[self.state_key]["trained"] = states[self.state_key]["best"]
        content = io.BytesIO()
        torch.save(checkpoint, content)
        write_atomically(path, content.getvalue())


def _averaged(learner: LightningModule) -> Weights:
    """The learner's tensors (no copies) that are averaged, by their names in a checkpoint."""
    weights = (each for each in learner.named_parameters(remove_duplicate=False) if each[1].requires_grad)
    found = chain(weights, learner.named_buffers(remove_duplicate=False))
    return {
        name: tensor.detach() for name, tensor in found if tensor.is_floating_point() and not name.startswith("loss.")
    }


def _copy(weights: Weights) -> Weights:
    return {name: weight.clone() for name, weight in weights.items()}


def _fits(trainer: Trainer) -> bool:
    return trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking


def _validate(trainer: Any) -> float:
    """The current validation score of the learner; changes no other callback and logs nothing."""
    with _scores_alone(trainer):
        trainer.validating = True
        trainer.fit_loop.epoch_loop.val_loop.run()
        trainer.training = True
    return float(trainer.callback_metrics[monitor_of(trainer.callbacks)])


@contextmanager
def _scores_alone(trainer: Any) -> Iterator[None]:
    callbacks, loggers = trainer.callbacks, trainer.loggers
    trainer.callbacks = [each for each in callbacks if isinstance(each, RetrievalValidation)]
    trainer.loggers = []
    try:
        yield
    finally:
        trainer.callbacks, trainer.loggers = callbacks, loggers
