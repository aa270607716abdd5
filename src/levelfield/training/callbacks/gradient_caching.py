"""Gradient caching: compute the gradients of a batch that exceeds memory, chunk by chunk.

The first pass embeds the batch without keeping activations. The loss then gives the gradient at the embeddings. The
second pass, torch's checkpointing, embeds each chunk again and propagates the chunk's rows of that gradient:

    d loss / d weights = sum over chunks of (d loss / d embeddings of the chunk) (d embeddings of the chunk / d weights)

This is the chain rule, so any loss of the embeddings has the same gradients as without chunks. Autograd sums over the
chunks before it reaches a weight: accumulation, scaling, clipping and reduction see each weight's gradient once.

Gao et al. 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup", arXiv:2101.06983.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from itertools import pairwise
from typing import Any, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from levelfield.core.errors import UserError, refuse_below
from levelfield.training.batches import Batch

# Largest distance between the embeddings of the two passes, relative to their norm: kernels with and without gradient
# may round differently. Another dropout gives a larger distance.
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
            raise UserError(f"{OPTION} replaces embed_batch: {type(learner).__name__} must have that of MetricLearner")
        if not isinstance(strategy, SingleDeviceStrategy | DDPStrategy):
            raise UserError(f"{OPTION} needs one device or --trainer.strategy ddp, not {type(strategy).__name__}")
        if any(part.training for part in learner.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)):
            rank_zero_warn(f"{OPTION}: batch norm sees chunks, not the batch; give --model.freeze_batch_norm true")
        self.wrap(learner)

    def wrap(self, learner: Any) -> None:
        """Let the learner's `embed_batch` embed in chunks if gradients are computed."""
        embed_whole, self._is_used = learner.embed_batch, False

        def embed_batch(batch: Batch) -> Tensor:
            self._is_used |= torch.is_grad_enabled()
            number = len(batch.labels)
            if batch.are_features or number <= self.chunk_size or not torch.is_grad_enabled():
                return embed_whole(batch)
            count = -(-number // self.chunk_size)  # of chunks of nearly equal sizes
            bounds = pairwise(number * place // count for place in range(count + 1))
            with set_checkpoint_early_stop(False):  # the second pass ends with embeddings too, to compare them
                return torch.cat([_embed_twice(learner, _rows(batch.samples, number, slice(*each))) for each in bounds])

        learner.embed_batch = embed_batch

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if not self._is_used:
            raise UserError(f"{OPTION} has no effect: call self.embed_batch in the step of {type(pl_module).__name__}")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        vars(pl_module).pop("embed_batch", None)

    on_exception = on_train_end  # type: ignore[assignment] # Lightning gives no names


def _embed_twice(learner: Any, chunk: Any) -> Tensor:
    """The embeddings of a chunk, whose activations autograd computes again, with the draws of the first pass."""
    found: list[Tensor] = []
    precision = learner._trainer and learner._trainer.precision_plugin

    def embed(rows: Any, _: Tensor) -> Tensor:
        torch.clear_autocast_cache()  # or all chunks would sum their gradients in half precision
        with precision.train_step_context() if precision else nullcontext():  # the second pass is outside of the step
            embeddings = learner(rows)
        found.append(embeddings.detach())
        first, again = found[0], found[-1]
        if learner.global_step % LOOKED_AT_EVERY == 0 and (again - first).norm() > TOLERANCE * first.norm():
            raise UserError(f"{OPTION} embeds twice, and it differs: use torch's generator, and buffers for state")
        return embeddings

    # Only of trunk and embedder: a loss may store embeddings in its buffers, and it runs between the passes.
    contexts = nullcontext(), _Before([*learner.trunk.buffers(), *learner.embedder.buffers()])
    here = torch.empty(0, device=learner.device)  # texts do not tell the device, whose draws are kept
    return checkpoint(embed, chunk, here, use_reentrant=False, context_fn=lambda: contexts)


class _Before:
    """A context in which buffers have their present values: only the first pass updates running statistics."""

    def __init__(self, buffers: list[Tensor]) -> None:
        self._buffers, self._values = buffers, [buffer.clone() for buffer in buffers]

    def _swap(self, *_: object) -> None:
        values = [buffer.clone() for buffer in self._buffers]
        for buffer, value in zip(self._buffers, self._values, strict=True):
            buffer.copy_(value)
        self._values = values

    __enter__ = __exit__ = _swap


def _rows(samples: Any, number: int, rows: slice) -> Any:
    if isinstance(samples, Mapping):
        return {key: _rows(part, number, rows) for key, part in samples.items()}
    if not isinstance(samples, Tensor | list | tuple) or len(samples) != number:
        raise UserError(f"{OPTION} splits tensors and lists with a row per label, or dictionaries of these: yield one")
    return samples[rows]
