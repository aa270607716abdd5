"""What an optimizer gets of a learner: a group of weights for each part that learns, with that part's rates."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from levelfield.errors import UserError


def parameter_groups(learner: nn.Module, rates: Mapping[str, Mapping[str, float]]) -> list[dict[str, Any]]:
    """The groups, without parts that have no weight that trains.

    Args:
        rates: of each part, by its name as an attribute: its learning rate and weight decay.

    Raises:
        UserError: no part has a weight that trains.
    """
    groups = []
    for name, of_part in rates.items():
        parameters = [weight for weight in getattr(learner, name).parameters() if weight.requires_grad]
        if parameters:
            groups.append({"params": parameters, "name": name, **of_part})
    if not groups:
        raise UserError(
            "nothing learns: neither trunk, embedder nor loss has a weight that trains; leave --model.freeze_trunk "
            "out, or give another --model.embedder"
        )
    return groups
