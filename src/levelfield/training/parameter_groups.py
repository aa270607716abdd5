"""The default optimizer, and what one gets of a learner: a group of weights for each part, with that part's rates."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from levelfield.errors import UserError
from levelfield.models.layers import layer_numbers


def adamw(parameters: Iterable) -> Optimizer:
    """AdamW at torch's defaults, fused on a CPU: the same numbers to rounding. The groups set the learning rates."""
    groups = [{**each, "params": list(each["params"])} if isinstance(each, dict) else each for each in parameters]
    weights = [weight for each in groups for weight in (each["params"] if isinstance(each, dict) else [each])]
    fused = all(weight.device.type == "cpu" and weight.is_floating_point() for weight in weights)
    optimizer = torch.optim.AdamW(groups, fused=fused or None)
    if fused:  # says that it undoes a scaling of gradients itself, whereupon Lightning refuses to clip them
        optimizer._step_supports_amp_scaling = False
    return optimizer


def parameter_groups(
    learner: nn.Module, rates: Mapping[str, Mapping[str, float]], layer_decay: float = 1.0
) -> list[dict[str, Any]]:
    """A group for each part with a weight that trains, and `rest`, at the embedder's rates, for all other such weights.

    A weight that two parts share is in the group of the first one.

    Args:
        rates: of each part, by its name as an attribute: its learning rate and weight decay.
        layer_decay: of the trunk, a factor from each layer to the one before it; below 1.0 each layer is a group.

    Raises:
        UserError: no weight trains, or the trunk does not say its layers.
    """
    groups: list[dict[str, Any]] = []
    grouped: set[nn.Parameter] = set()
    parts = [(name, getattr(learner, name), of_part) for name, of_part in rates.items()]
    for name, part, of_part in [*parts, ("rest", learner, rates["embedder"])]:
        weights = [weight for weight in part.parameters() if weight.requires_grad and weight not in grouped]
        grouped.update(weights)
        if weights and name == "trunk" and layer_decay != 1.0:
            groups += _of_layers(part, of_part, layer_decay)
        elif weights:
            groups.append({"params": weights, "name": name, **of_part})
    if not groups:
        raise UserError(
            "nothing learns: no weight of the learner trains; leave --model.freeze_trunk out, or give another "
            "--model.embedder"
        )
    return groups


def _of_layers(trunk: nn.Module, rates: Mapping[str, float], decay: float) -> Iterator[dict[str, Any]]:
    """A group for each layer l of L, with the rate

        lr * decay^(L - l)

    Bao et al. 2021, "BEiT: BERT Pre-Training of Image Transformers", arXiv:2106.08254; L is the embedder, above the
    trunk. Weights keep their order, by which an optimizer's state is stored.
    """
    numbers, above = layer_numbers(trunk)
    learning = [(name, weight) for name, weight in trunk.named_parameters() if weight.requires_grad]
    for layer, members in groupby(learning, key=lambda pair: numbers[pair[0]]):
        of_layer = {**rates, "lr": rates["lr"] * decay ** (above - layer)}
        yield {"params": [weight for _, weight in members], "name": f"trunk.{layer}", **of_layer}
