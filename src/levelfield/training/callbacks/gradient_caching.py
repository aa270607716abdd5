"""Gradient caching: compute the gradients of a batch that exceeds memory, chunk by chunk.

The first pass embeds the batch without keeping activations. The loss then gives the gradient at the embeddings. The
second pass embeds each chunk again, with activations, and propagates the chunk's rows of that gradient to the weights:

    d loss / d weights = sum over chunks of (d loss / d embeddings of the chunk) (d embeddings of the chunk / d weights)

This is the chain rule, so any loss of the embeddings has the same gradients as without chunks. For autograd, both
passes are one operation on the weights: accumulation, scaling, clipping and reduction see each weight's gradient once.

Gao et al. 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup", arXiv:2101.06983.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import Any, cast

import torch
from jaxtyping import Float
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

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
    chunks = [_rows(samples, number, slice(*between)) for between in pairwise(bounds)]
    named = learner.named_parameters()
    weights = [weight for name, weight in named if weight.requires_grad and not name.startswith("loss.")]
    return _EmbeddedTwice.apply(learner, chunks, *weights)


class _EmbeddedTwice(torch.autograd.Function):
    """The embeddings of all chunks, as a function of the weights."""

    @staticmethod
    def forward(ctx: Any, learner: Any, chunks: list[Any], *weights: Tensor) -> Tensor:
        # Only of trunk and embedder: a loss may store embeddings in its buffers, and it runs between the passes.
        ctx.buffers = [*learner.trunk.buffers(), *learner.embedder.buffers()]
        ctx.beginning = [buffer.clone() for buffer in ctx.buffers]
        ctx.learner, ctx.chunks, ctx.draws = learner, chunks, []
        rows = []
        for chunk in chunks:
            ctx.draws.append(_generator_states(learner.device))
            rows.append(learner(chunk))
        embeddings = torch.cat(rows)
        ctx.lengths = [len(of_chunk) for of_chunk in rows]
        ctx.save_for_backward(embeddings, *weights)  # so that autograd refuses weights that changed in between
        return embeddings

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        learner, (embeddings, *weights) = ctx.learner, ctx.saved_tensors
        draws_after, buffers_after = _generator_states(learner.device), [buffer.clone() for buffer in ctx.buffers]
        _fill(ctx.buffers, ctx.beginning)
        found: list[Tensor | None] = [None] * len(weights)
        off = torch.zeros((), device=embeddings.device)
        parts = zip(ctx.chunks, ctx.draws, embeddings.split(ctx.lengths), gradient.split(ctx.lengths), strict=True)
        with torch.enable_grad(), _precision(learner):
            for chunk, draws, first, at_embeddings in parts:
                _set_generator_states(learner.device, draws)
                again = learner(chunk)
                off += (again.detach() - first).square().sum()
                _add(found, torch.autograd.grad(again, weights, at_embeddings, allow_unused=True))
        _set_generator_states(learner.device, draws_after)
        _fill(ctx.buffers, buffers_after)  # running statistics are those of the first pass, updated once
        if learner.global_step % LOOKED_AT_EVERY == 0 and off.sqrt() > TOLERANCE * embeddings.norm():
            raise UserError(
                f"{OPTION} embeds a batch twice, and the embeddings differ: let the trunk draw from torch's generator "
                "and keep its state in buffers, or leave the callback out"
            )
        return None, None, *found


def _fill(buffers: list[Tensor], values: list[Tensor]) -> None:
    for buffer, value in zip(buffers, values, strict=True):
        buffer.copy_(value)


def _add(sums: list[Tensor | None], gradients: Sequence[Tensor | None]) -> None:
    """Add gradients, not in place: autograd may return the same tensor for two weights."""
    for place, (so_far, new) in enumerate(zip(sums, gradients, strict=True)):
        if new is not None:
            sums[place] = new if so_far is None else so_far + new


def _rows(samples: Any, number: int, rows: slice) -> Any:
    if isinstance(samples, Mapping):
        return {key: _rows(part, number, rows) for key, part in samples.items()}
    if not isinstance(samples, Tensor | list | tuple) or len(samples) != number:
        raise UserError(
            f"{OPTION} splits samples in a tensor or a list with one row per label, or in a dictionary of these: let "
            "the loader yield one, or leave the callback out"
        )
    return samples[rows]


def _generator_states(device: torch.device) -> tuple[Tensor, ...]:
    """States of torch's random generators, of the CPU and of the device."""
    of_device = () if device.type == "cpu" else (torch.get_device_module(device).get_rng_state(),)
    return torch.get_rng_state(), *of_device


def _set_generator_states(device: torch.device, states: tuple[Tensor, ...]) -> None:
    torch.set_rng_state(states[0])
    for state in states[1:]:
        torch.get_device_module(device).set_rng_state(state)


def _precision(learner: LightningModule) -> Any:
    """The Trainer's precision context of a training step; a backward pass runs outside of it."""
    trainer = learner._trainer
    return nullcontext() if trainer is None else trainer.precision_plugin.train_step_context()
