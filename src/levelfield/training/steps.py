"""What happens around each training step: its draws are seeded, the first batch is checked, the losses are logged."""

import atexit
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import CombinedLoader, rank_zero_warn
from torch import Tensor, nn

from levelfield.core.errors import TrainingFailed
from levelfield.core.seeds import global_seed, seed_of
from levelfield.models.trunks import Standardise
from levelfield.training.batches import broken_samples, gather_rows, read_known

TRAIN_LOSS = "train/loss"


def seed_draws(device: torch.device, *key: str | int) -> None:
    """Seed the generators of a device by `seed_of(*key)`.

    `torch.manual_seed` would store a traceback for each missing kind of accelerator. This takes a quarter of the time
    of a head's step, and ever more memory.
    """
    if device.type not in ("cpu", "cuda"):
        torch.manual_seed(seed_of(*key))
        return
    torch.default_generator.manual_seed(seed_of(*key))
    if device.type == "cuda":
        torch.cuda.manual_seed_all(seed_of(*key))


def step_key(trainer: Trainer, learner: LightningModule, batch_idx: int) -> tuple[Any, ...]:
    """The key that seeds the draws of a training step.

    Batches that are accumulated into one step have different draws.
    """
    seed = global_seed(getattr(learner, "seed", None))
    return "step", seed, trainer.global_step, batch_idx % trainer.accumulate_grad_batches


class SeedSteps(Callback):
    """Seeds dropout and every other draw of a training step by (seed, step, process).

    The seed is the module's attribute `seed`; without one it is that of `seed_everything`, or 0. Lightning sets a new
    random state when several processes form a group. This callback restores the earlier state, so that class weights
    start with the same values as on one process.

    Lightning lets loader processes of a resumed fit open batches before it sets the epoch of a sampler. This callback
    then requests the batches again.
    """

    def __init__(self) -> None:
        self._state = torch.get_rng_state()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if dist.is_available():
            # Leaving the group waits for other processes, and a failing one must not wait.
            atexit.unregister(dist.destroy_process_group)
            if dist.is_initialized() and dist.get_world_size() > 1:
                torch.set_rng_state(self._state)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        epoch: int = trainer.fit_loop.epoch_progress.current.processed  # type: ignore[attr-defined]
        loaders = CombinedLoader(trainer.train_dataloader).flattened
        owners = [*loaders, *(getattr(loader, "batch_sampler", None) for loader in loaders)]
        samplers: list[Any] = [getattr(owner, "sampler", None) for owner in owners]
        samplers = [each for each in samplers if hasattr(each, "set_epoch")]
        if any(getattr(sampler, "epoch", epoch) != epoch for sampler in samplers):
            for sampler in samplers:
                sampler.set_epoch(epoch)
            iter(trainer.fit_loop._data_fetcher)  # type: ignore[arg-type]

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        seed_draws(pl_module.device, *step_key(trainer, pl_module, batch_idx), "trunk", trainer.global_rank)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._state = torch.get_rng_state()
        # Lightning leaves the group at the very end. If a thread of gloo then frees a tensor, the process aborts.
        if dist.is_available() and dist.is_initialized() and dist.get_backend() == dist.Backend.GLOO:
            atexit.register(dist.destroy_process_group)


class CheckFirstBatch(Callback):
    """Warns if several processes train on the same samples, or if images are standardised twice.

    It looks at the first batch of a fit only. Batches that only your own `training_step` can read are not checked.
    """

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if trainer.global_step or batch_idx or (read := read_known(batch)) is None:
            return
        images = read.samples
        if isinstance(images, Tensor) and images.is_floating_point() and not read.are_features:
            low, high = (float(each) for each in images.aminmax())
            # A little outside of [0, 1] from interpolation or noise.
            if (low < -0.5 or high > 1.5) and any(isinstance(part, Standardise) for part in pl_module.modules()):
                rank_zero_warn(f"images of {low:.3g} to {high:.3g}: the trunk standardises [0, 1]; leave Normalize out")
        if trainer.world_size > 1 and isinstance(read.index, Tensor):
            of_ranks = gather_rows(pl_module, read.index).reshape(trainer.world_size, -1)
            # All samples of a process: two processes may share some, of a class with few samples.
            if any(torch.isin(of_ranks[rank], of_ranks[:rank]).all() for rank in range(1, trainer.world_size)):
                rank_zero_warn("several processes train on the same samples: let the sampler shard them by rank")


class LogLosses(Callback):
    """Logs `train/loss` and every other number of the dictionary that any module's `training_step` returns.

    Of the module's `loss` it logs the terms in the attribute `terms`, and each weight that is a single number, such as
    a learnt temperature. A name without a slash gets the prefix `train/`.

    It logs only in steps whose logs are read, because logging takes as long as the backward pass of a head. It checks
    the losses every `log_every_n_steps` steps, before a validation and at the end of an epoch: on a GPU, each check
    waits for the step.

    Raises:
        TrainingFailed: a loss since the last check is not finite.
    """

    def __init__(self) -> None:
        self._step = 0
        self._unchecked: list[tuple[int, Tensor]] = []

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        self._step = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        returned = {"loss": outputs} if isinstance(outputs, Tensor) else dict(outputs or {})
        if not isinstance(loss := returned.pop("loss", None), Tensor):
            return  # Lightning skipped the step, or the module has manual optimization
        loss = loss.detach()
        if pl_module.automatic_optimization:  # Lightning has divided by it
            loss = loss * trainer.accumulate_grad_batches
        self._unchecked.append((self._step, loss))
        every = trainer.log_every_n_steps  # type: ignore[attr-defined]
        if every and self._step % every == 0:
            self._check(batch)
            trainer.progress_bar_metrics[TRAIN_LOSS] = loss.item()  # log(prog_bar=True) would read it at each step
        # By a logger, or by a callback when the training pauses.
        pauses = trainer.is_last_batch or trainer.val_check_batch != trainer.num_training_batches
        if trainer._logger_connector.should_update_logs or pauses or 0 <= trainer.max_steps <= trainer.global_step:
            numbers = {TRAIN_LOSS: loss}
            for name, value in {**dict(_of_loss(getattr(pl_module, "loss", None))), **returned}.items():
                key = name if "/" in name else f"train/{name}"
                if isinstance(value, Tensor) and value.numel() == 1:
                    numbers[key] = value.detach().reshape(())
                elif type(value) in (int, float):
                    numbers[key] = value
            pl_module.log_dict(numbers, batch_size=1)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._check()

    on_train_epoch_end = on_validation_start

    def _check(self, batch: Any = None) -> None:
        losses, self._unchecked = self._unchecked, []
        if losses and not torch.isfinite(torch.stack([loss for _, loss in losses])).all():
            step, loss = next((step, loss) for step, loss in losses if not torch.isfinite(loss))
            remedy = "lower the learning rates (--model.trunk_lr, --model.loss_lr) or the loss' scale"
            if step == 0:  # no rate has had an effect
                remedy = broken_samples(read_known(batch)) or "look at the samples, the initial weights and the loss"
            raise TrainingFailed(f"the loss is {loss.item()} at step {step}: {remedy}")


def _of_loss(loss: Any) -> Iterator[tuple[str, Any]]:
    """The terms of a loss, and its weights that are single numbers, including those of inner losses."""
    if not isinstance(loss, nn.Module):
        return
    for name, part in loss.named_modules():
        for term, value in getattr(part, "terms", {}).items():
            yield f"{name}.{term}".lstrip("."), value
    yield from ((name, weight) for name, weight in loss.named_parameters() if weight.requires_grad)
