"""What a process' trainings share: the frozen trunk of the last one, and the list of a data set's samples."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from levelfield.data.datasets.base import MetricDataset
from levelfield.models.trunks import Trunk
from levelfield.training.frozen_trunk import trunk_hash

# A list of samples is read again after this: a new file in a folder shows in no file that was looked at.
LIST_SECONDS = 60.0


class KeptParts:
    """Builds parts of a training, or gives those of the last one again where building them would make the same.

    Only parts of levelfield: of one's own nobody knows what it draws from, or what it remembers.
    """

    def __init__(self) -> None:
        self._trunk: tuple[tuple[Any, ...], Trunk, str, torch.Tensor] | None = None
        self._dataset: tuple[tuple[Any, ...], MetricDataset, float] | None = None

    def builders(self, frozen: bool) -> Mapping[type, Callable[..., Any]]:
        """What `instantiate` takes.

        Args:
            frozen: whether nothing in the training changes the trunk.
        """
        return {MetricDataset: self.dataset, **({Trunk: self.trunk} if frozen else {})}

    def trunk(self, kind: type[Trunk], arguments: dict[str, Any]) -> Trunk:
        """A trunk with the weights that `kind(**arguments)` would have.

        The same where class, arguments and the state of torch's generator are the same, which then moves on as if the
        trunk had been built: what is built next draws what it would have drawn. So it is for all methods and folds of
        a study's trial or run.

        Raises:
            UserError: the class' own.
        """
        asked = (kind, repr(arguments), torch.get_rng_state().numpy().tobytes())
        if self._trunk is not None:
            known, trunk, content, after = self._trunk
            if known == asked and trunk.adapter is None and trunk_hash(trunk) == content:
                torch.set_rng_state(after)
                return trunk
        trunk = kind(**arguments)
        if _is_ours(kind):
            self._trunk = asked, trunk, trunk_hash(trunk), torch.get_rng_state()
        return trunk

    def dataset(self, kind: type[MetricDataset], arguments: dict[str, Any]) -> MetricDataset:
        """The data set `kind(**arguments)`, for some seconds with what was read of its list of samples.

        A file that has changed since then ends this: its size, times and inode are looked at each time.

        Raises:
            UserError: the class' own.
        """
        asked, now = (kind, repr(arguments)), time.monotonic()
        if self._dataset is not None:
            known, dataset, since = self._dataset
            if known == asked and now - since < LIST_SECONDS and not dataset.has_changed():
                return dataset
        dataset = kind(**arguments)
        if _is_ours(kind):
            dataset.keep_list()
            self._dataset = asked, dataset, now
        return dataset


def _is_ours(kind: type) -> bool:
    return kind.__module__.startswith("levelfield.")
