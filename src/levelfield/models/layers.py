"""The layers of a trunk's network, in their order from input to features."""

import re
from collections.abc import Iterator
from typing import Any

from torch import nn

from levelfield.core.errors import UserError

BLOCK = re.compile(r"(?:^|\.)(?:layers?|h|blocks?)\.(\d+)\.")  # as in the encoders of transformers
ABOVE = "~"  # stands for a weight after all blocks


def layer_numbers(trunk: nn.Module) -> tuple[dict[str, int], int]:
    """The layer of each weight of a trunk by the weight's name, and the number of the layer above the trunk.

    Patches and embeddings are 0, then the blocks follow: timm's own grouping (`group_matcher`), as its fine-tuning uses
    it, or the numbered layers of transformers. Weights after the last block belong to the layer above. Raises UserError
    for a trunk without a network of timm or transformers.
    """
    from timm.models._manipulate import group_with_matcher

    found: dict[str, int] = {}
    above = 0
    for place, network in networks(trunk):
        names = [*(name for name, _ in network.named_parameters()), ABOVE]
        if hasattr(network, "group_matcher"):
            matcher = network.group_matcher(coarse=False)
            numbers = group_with_matcher(((name, None) for name in names), matcher, reverse=True)
        else:
            numbers = _of_encoder(names)
        above = max(above, numbers.pop(ABOVE))
        found |= {f"{place}.{name}".lstrip("."): number for name, number in numbers.items()}
    if not found:
        raise UserError(
            f"--model.layer_decay: {type(trunk).__name__} does not say which layers it has; give a trunk of timm or "
            "transformers, or leave the option out"
        )
    return {name: found.get(name, above) for name, _ in trunk.named_parameters()}, above


def networks(trunk: nn.Module) -> Iterator[tuple[str, Any]]:
    """The outermost networks of timm and transformers in a trunk, with their names."""
    outer: list[str] = []
    for name, module in trunk.named_modules():
        of_timm = hasattr(module, "group_matcher") or hasattr(module, "set_grad_checkpointing")
        of_transformers = hasattr(module, "gradient_checkpointing_enable")
        if (of_timm or of_transformers) and not any(name.startswith(f"{each}.") for each in outer):
            outer.append(name)
            yield name, module


def _of_encoder(names: list[str]) -> dict[str, int]:
    blocks = {name: int(found[1]) + 1 for name in names if (found := BLOCK.search(name))}
    first = next((place for place, name in enumerate(names) if name in blocks), 0)
    behind = max(blocks.values(), default=0) + 1
    return {name: blocks.get(name, 0 if place < first else behind) for place, name in enumerate(names)}
