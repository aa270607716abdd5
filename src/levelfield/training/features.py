"""Compute the features of a frozen trunk."""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from levelfield.core.paths import strip_paths
from levelfield.core.source_identity import sources
from levelfield.core.versions import library_versions, processor
from levelfield.models.trunks import ModuleTrunk, Trunk
from levelfield.training.batches import as_weights
from levelfield.training.frozen_trunk import trunk_hash


class TrunkExtractor:
    """The features of a trunk in eval mode, in float32, without gradients.

    Args:
        trunk: its weights must not change while this is used.
        device: device of the trunk.
    """

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
        modes = [(part, part.training) for part in self.trunk.modules()]
        self.trunk.to(self.device).eval()
        try:
            for samples in batches:
                if isinstance(samples, Tensor):
                    samples = as_weights(samples.to(self.device, non_blocking=True), self.trunk).contiguous()
                yield self.trunk(samples).float().cpu().numpy()
        finally:
            for part, training in modes:
                part.training = training
