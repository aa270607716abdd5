"""Embeddings of a whole data loader, or features of a frozen trunk, outside of a Trainer."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.data import DataLoader

from levelfield.core.paths import strip_paths
from levelfield.core.source_identity import sources
from levelfield.core.versions import library_versions, processor
from levelfield.models.trunks import ModuleTrunk, Trunk
from levelfield.training.batches import Batch, match_dtype
from levelfield.training.frozen_trunk import trunk_hash


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
    parts, seen = [], 0
    with evaluated(module, device):
        for number, batch in enumerate(dataloader, start=1):
            samples, labels, index, are_features = Batch.read(batch)
            index = torch.arange(seen, seen + len(labels)) if index is None else index
            seen += len(labels)
            if isinstance(samples, Tensor):
                samples = match_dtype(samples.to(device, non_blocking=True), module)
            if not are_features:
                embeddings = module(samples)
            else:  # features already
                embeddings = samples if isinstance(module, Trunk) else module.embed_features(samples)  # type: ignore[operator]
            parts.append((embeddings.float().cpu(), labels, index))
            if progress is not None:
                progress(number, len(dataloader))
    embeddings, labels, index = (torch.cat(part) for part in zip(*parts, strict=True))
    return EmbeddedSet(embeddings, labels, index)


@contextmanager
def evaluated(module: nn.Module, device: torch.device | str) -> Iterator[None]:
    """A module in eval mode on a device. Each part gets its mode back: batch norm may be frozen in a training trunk."""
    modes = [(part, part.training) for part in module.modules()]
    try:
        module.to(device).eval()
        yield
    finally:
        for part, training in modes:
            part.training = training


class TrunkExtractor:
    """The features of a trunk in eval mode, in float32, without gradients. Meanwhile its weights must not change."""

    def __init__(self, trunk: Trunk, device: torch.device) -> None:
        self.trunk, self.device = trunk, device

    @cached_property
    def identity(self) -> Mapping[str, Any]:
        """Everything that features depend on, except the samples, as plain values."""
        trunk = self.trunk
        kind = type(trunk.module if isinstance(trunk, ModuleTrunk) else trunk)
        name = f"{kind.__module__}.{kind.__qualname__}"
        arguments = {key: value for key, value in trunk.init_args.items() if key != "weights"}
        on_gpu = self.device.type == "cuda"
        return {
            "trunk": trunk_hash(trunk),
            "class": name,
            "arguments": [strip_paths(arguments), dict(trunk.checkpoint_args), trunk.mean, trunk.std],
            "sources": sources(name),
            "libraries": library_versions(trunk),
            "device": torch.cuda.get_device_name(self.device) if on_gpu else processor(),
            "threads": None if on_gpu else torch.get_num_threads(),
        }

    @torch.no_grad()  # not inference mode: a module moved to a device there can never be trained
    def __call__(self, batches: Iterable[Any]) -> Iterator[Float[np.ndarray, "batch features"]]:
        """Features of each batch of samples: images as floats or as bytes, or texts."""
        with evaluated(self.trunk, self.device):
            for samples in batches:
                if isinstance(samples, Tensor):
                    samples = match_dtype(samples.to(self.device, non_blocking=True), self.trunk).contiguous()
                yield self.trunk(samples).float().cpu().numpy()
