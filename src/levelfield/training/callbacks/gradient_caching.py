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
                "--model.freeze_batch_norm true uses neither"
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
            count = -(-number // self.chunk_size)  # of chunks of nearly equal sizes
            bounds = pairwise(number * place // count for place in range(count + 1))
            chunks = [_rows(batch.samples, number, slice(*between)) for between in bounds]
            named = learner.named_parameters()
            weights = [weight for name, weight in named if weight.requires_grad and not name.startswith("loss.")]
            return _EmbeddedTwice.apply(learner, chunks, *weights)

        learner.embed_batch = embed_batch

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if not self._is_used:
            raise UserError(
                f"{OPTION} has no effect: the training_step of {type(pl_module).__name__} does not call "
                "self.embed_batch(Batch.read(batch)); call it, or leave the callback out"
            )

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        vars(pl_module).pop("embed_batch", None)

    on_exception = on_train_end  # type: ignore[assignment] # Lightning gives no names


class _EmbeddedTwice(torch.autograd.Function):
    """The embeddings of all chunks, as a function of the weights; the second pass has the draws of the first."""

    @staticmethod
    def forward(ctx: Any, learner: Any, chunks: list[Any], *weights: Tensor) -> Tensor:
        ctx.learner, ctx.chunks, ctx.states, rows = learner, chunks, [], []
        # Only of trunk and embedder: a loss may store embeddings in its buffers, and it runs between the passes.
        ctx.buffers = [*learner.trunk.buffers(), *learner.embedder.buffers()]
        for chunk in chunks:
            ctx.states.append(_State(learner.device, [] if ctx.states else ctx.buffers))
            rows.append(learner(chunk))
        embeddings = torch.cat(rows)
        ctx.lengths = [len(of_chunk) for of_chunk in rows]
        ctx.save_for_backward(embeddings, *weights)  # so that autograd refuses weights that changed in between
        return embeddings

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        learner, (embeddings, *weights) = ctx.learner, ctx.saved_tensors
        after = _State(learner.device, ctx.buffers)  # running statistics are those of the first pass, updated once
        found: list[Tensor | None] = [None] * len(weights)
        off = torch.zeros((), device=embeddings.device)
        parts = zip(ctx.chunks, ctx.states, embeddings.split(ctx.lengths), gradient.split(ctx.lengths), strict=True)
        trainer = learner._trainer
        with torch.enable_grad(), trainer.precision_plugin.train_step_context() if trainer else nullcontext():
            for chunk, state, first, at_embeddings in parts:
                state.restore()
                again = learner(chunk)
                off += (again.detach() - first).square().sum()
                further = torch.autograd.grad(again, weights, at_embeddings, allow_unused=True)
                # Not in place: autograd may return the same tensor for two weights.
                pairs = zip(found, further, strict=True)
                found = [new if old is None else old if new is None else old + new for old, new in pairs]
        after.restore()
        if learner.global_step % LOOKED_AT_EVERY == 0 and off.sqrt() > TOLERANCE * embeddings.norm():
            raise UserError(
                f"{OPTION} embeds a batch twice, and the embeddings differ: let the trunk draw from torch's generator "
                "and keep its state in buffers, or leave the callback out"
            )
        return None, None, *found


class _State:
    """What torch's random generators, of the CPU and of a device, and buffers hold now."""

    def __init__(self, device: torch.device, buffers: Sequence[Tensor]) -> None:
        modules: list[Any] = [torch] if device.type == "cpu" else [torch, torch.get_device_module(device)]
        self._draws = [(module, module.get_rng_state()) for module in modules]
        self._buffers = [(buffer, buffer.clone()) for buffer in buffers]

    def restore(self) -> None:
        for module, state in self._draws:
            module.set_rng_state(state)
        for buffer, value in self._buffers:
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
