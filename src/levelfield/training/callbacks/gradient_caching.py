"""Gradient caching: compute the gradients of a batch that exceeds memory, chunk by chunk.

The first pass embeds the batch without keeping activations. The loss then gives the gradient at the embeddings. The
second pass embeds each chunk again, with activations, and propagates the chunk's rows of that gradient to the weights:

    d loss / d weights = sum over chunks of (d loss / d embeddings of the chunk) (d embeddings of the chunk / d weights)

This is the chain rule, so any loss of the embeddings has the same gradients as without chunks. `torch.utils.checkpoint`
does it: accumulation, scaling, clipping and reduction see each weight's gradient once.

Gao et al. 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup", arXiv:2101.06983.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from itertools import pairwise
from typing import Any, cast

import torch
from jaxtyping import Float
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from levelfield.core.errors import UserError, refuse_below
from levelfield.training.batches import Batch

# Largest distance between the embeddings of the two passes, relative to their norm: kernels may round differently.
# Another dropout gives a larger distance.
TOLERANCE = 0.05
OPTION = "--trainer.callbacks GradientCaching"
LEARNER = "levelfield.training.learner"  # the module of MetricLearner, which imports this one
LOOKED_AT_EVERY = 100  # steps, because a check waits for the GPU


class GradientCaching(Callback):
    """Trains on batches that exceed memory; one extra forward pass, the same gradients.

    Args:
        chunk_size: samples per chunk; a step keeps the activations of one chunk at a time.

    Raises:
        UserError: a chunk size below 1, a strategy that shards the weights, a learner without the usual `embed_batch`
            or whose step does not call it, samples that cannot be split, or two passes with different embeddings.
    """

    _is_used = True

    def __init__(self, chunk_size: int) -> None:
        refuse_below(1, "trainer.callbacks", chunk_size=chunk_size)
        self.chunk_size = chunk_size

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if getattr(pl_module, "freeze_trunk", False):
            return
        strategy, learner = trainer.strategy, cast(Any, pl_module)
        if getattr(getattr(type(learner), "embed_batch", None), "__module__", None) != LEARNER:
            raise UserError(
                f"{OPTION} replaces MetricLearner.embed_batch, but {type(learner).__name__} has its own or none: "
                "override forward or embed_features instead, or leave the callback out"
            )
        if not isinstance(strategy, SingleDeviceStrategy | DDPStrategy):
            raise UserError(f"{OPTION} needs one device or --trainer.strategy ddp, not {type(strategy).__name__}")
        if any(part.training for part in learner.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)):
            rank_zero_warn(
                f"{OPTION}: batch norm uses the statistics of each chunk, not of the batch; "
                "--model.freeze_batch_norm true uses neither",
                category=UserWarning,
            )
        self.wrap(learner)

    def wrap(self, learner: Any) -> None:
        """Let the learner's `embed_batch` embed in chunks if gradients are computed."""
        embed_whole, self._is_used = learner.embed_batch, False

        def embed_batch(batch: Batch) -> Tensor:
            self._is_used |= torch.is_grad_enabled()
            number = len(batch.labels)
            if batch.are_features or number <= self.chunk_size or not torch.is_grad_enabled():
                return embed_whole(batch)
            return embed_in_chunks(learner, batch.samples, number, self.chunk_size)

        learner.embed_batch = embed_batch

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if not self._is_used:
            raise UserError(
                f"{OPTION} has no effect: the training_step of {type(pl_module).__name__} does not call "
                "self.embed_batch(Batch.read(batch)); call it, or leave the callback out"
            )

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        vars(pl_module).pop("embed_batch", None)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        vars(pl_module).pop("embed_batch", None)


def embed_in_chunks(learner: LightningModule, samples: Any, number: int, size: int) -> Float[Tensor, "batch embedding"]:
    """Embeddings of a batch; the backward pass embeds the chunks again, with the same random draws.

    Args:
        learner: called with each chunk.
        samples: a tensor or a list of `number` samples, or a dictionary of these.
        size: largest number of samples per chunk; chunks have nearly equal sizes.

    Raises:
        UserError: samples of another form; in the backward pass, different embeddings.
    """
    count = -(-number // size)
    bounds = [number * place // count for place in range(count + 1)]
    return torch.cat([_embed_twice(learner, _rows(samples, number, slice(*between))) for between in pairwise(bounds)])


def _embed_twice(learner: Any, samples: Any) -> Tensor:
    # Only of trunk and embedder: a loss may store embeddings in its buffers, and it runs between the passes.
    buffers = [*learner.trunk.buffers(), *learner.embedder.buffers()]
    beginning, first = _copies(buffers), list[Tensor]()

    def embed_chunk(_: Tensor) -> Tensor:
        if not first:
            embeddings = learner(samples)
            first.append(embeddings.detach())
            return embeddings
        after = _copies(buffers)
        _fill(buffers, beginning)
        with nullcontext() if learner._trainer is None else learner.trainer.precision_plugin.train_step_context():
            embeddings = learner(samples)
        _fill(buffers, after)  # running statistics are those of the first pass, updated once
        off = (embeddings.detach() - first[0]).norm()
        if learner.global_step % LOOKED_AT_EVERY == 0 and off > TOLERANCE * first[0].norm():
            raise UserError(
                f"{OPTION} embeds a batch twice, and the embeddings differ: let the trunk draw from torch's generator "
                "and keep its state in buffers, or leave the callback out"
            )
        return embeddings

    on_device = torch.empty(0, device=learner.device)  # whose generator is set again
    with set_checkpoint_early_stop(False):  # the whole second pass is compared
        embeddings: Tensor = checkpoint(embed_chunk, on_device, use_reentrant=False)
    return embeddings


def _copies(buffers: list[Tensor]) -> list[Tensor]:
    return [buffer.clone() for buffer in buffers]


def _fill(buffers: list[Tensor], values: list[Tensor]) -> None:
    for buffer, value in zip(buffers, values, strict=True):
        buffer.copy_(value)


def _rows(samples: Any, number: int, rows: slice) -> Any:
    if isinstance(samples, Mapping):
        return {key: _rows(part, number, rows) for key, part in samples.items()}
    if not isinstance(samples, Tensor | list | tuple) or len(samples) != number:
        raise UserError(
            f"{OPTION} splits samples in a tensor or a list with one row per label, or in a dictionary of these: let "
            "the loader yield one, or leave the callback out"
        )
    return samples[rows]
