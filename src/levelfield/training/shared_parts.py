"""Parts that the trainings of a process share: the frozen trunk and the data set."""

import time
from typing import Any

import torch

from levelfield.data.dataset import MetricDataset
from levelfield.models.trunks import Trunk
from levelfield.training.frozen_trunk import trunk_hash

# Seconds until a list of samples is read again: a new file in a folder changes no known file.
LIST_SECONDS = 60.0


class SharedParts:
    """Builds parts of a training, or returns the last training's parts if they would be the same.

    Only for classes of levelfield: a user's class may draw random numbers or keep state.
    """

    def __init__(self) -> None:
        self._trunk: Any = (None, None, "", None)
        self._dataset: Any = (None, None, 0.0)

    def trunk(self, kind: type[Trunk], arguments: dict[str, Any]) -> Trunk:
        """A trunk with the weights that `kind(**arguments)` would have.

        It is shared if class, arguments and the state of torch's generator are equal, as for all methods and folds of a
        trial or run. The generator then advances as if the trunk had been built, so later draws are the same.

        Raises:
            UserError: an error of the class.
        """
        asked = (kind, repr(arguments), torch.get_rng_state().numpy().tobytes())
        known, trunk, content, after = self._trunk
        if known == asked and trunk.adapter is None and trunk_hash(trunk) == content:
            torch.set_rng_state(after)
            return trunk
        trunk = kind(**arguments)
        if kind.__module__.startswith("levelfield."):
            self._trunk = asked, trunk, trunk_hash(trunk), torch.get_rng_state()
        return trunk

    def dataset(self, kind: type[MetricDataset], arguments: dict[str, Any]) -> MetricDataset:
        """The data set `kind(**arguments)`, which keeps its list of samples for `LIST_SECONDS`.

        Raises:
            UserError: an error of the class.
        """
        asked, now = (kind, repr(arguments)), time.monotonic()
        known, dataset, since = self._dataset
        if known == asked and now - since < LIST_SECONDS:
            return dataset
        dataset = kind(**arguments)
        if kind.__module__.startswith("levelfield."):
            self._dataset = asked, dataset, now
        return dataset
