"""Seed the draws of any LightningModule by step, so that a resumed fit draws the same numbers."""

import atexit
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import CombinedLoader

from levelfield.training.random_draws import seed_draws, step_key


class RandomDraws(Callback):
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
        owners = [each for loader in loaders for each in (loader, getattr(loader, "batch_sampler", None))]
        samplers: list[Any] = [
            sampler for each in owners if hasattr(sampler := getattr(each, "sampler", None), "set_epoch")
        ]
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
