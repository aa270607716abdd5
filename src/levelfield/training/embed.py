"""Embeddings of a whole data loader, outside of a Trainer."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.data import DataLoader

from levelfield.data.loaders import opened_ahead
from levelfield.models.trunks import Trunk
from levelfield.training.batches import Batch, as_weights


class EmbeddedSet(NamedTuple):
    """Embeddings with labels and positions in the data set, on the CPU."""

    embeddings: Float[Tensor, "samples embedding"]
    labels: Int[Tensor, " samples"]
    index: Int[Tensor, " samples"]  # type: ignore[assignment] # a field, not tuple's method of that name


@torch.no_grad()  # not inference mode: a module moved to a device there can never be trained
def embed(
    module: nn.Module,
    dataloader: DataLoader,
    device: torch.device | str | None = None,
    progress: Callable[[int, int], Any] | None = None,
) -> EmbeddedSet:
    """Embed each sample of `dataloader`; without an index, the result is in the loader's order.

    A loader may yield features instead of samples for a learner.

    Args:
        module: a `MetricLearner` (embeddings) or a trunk (features); its mode is restored, also after an error.
        dataloader: batches in any order.
        device: where to compute; None is the module's device.
        progress: called with (finished batches, all batches).
    """
    if device is None:
        device = next((p.device for p in module.parameters()), torch.device("cpu"))
    modes = [(part, part.training) for part in module.modules()]  # batch norm may be frozen inside a training trunk
    parts = []
    seen = 0
    try:
        module.to(device).eval()
        for number, batch in enumerate(opened_ahead(dataloader), start=1):
            samples, labels, index, are_features = Batch.read(batch)
            index = torch.arange(seen, seen + len(labels)) if index is None else index
            seen += len(labels)
            if isinstance(samples, Tensor):
                samples = as_weights(samples.to(device, non_blocking=True), module)
            if not are_features:
                embeddings = module(samples)
            else:  # features already
                embeddings = samples if isinstance(module, Trunk) else module.embed_features(samples)  # type: ignore[operator]
            parts.append((embeddings.float().cpu(), labels, index))
            if progress is not None:
                progress(number, len(dataloader))
    finally:
        for part, training in modes:
            part.training = training
    embeddings, labels, index = (torch.cat(part) for part in zip(*parts, strict=True))
    return EmbeddedSet(embeddings, labels, index)
